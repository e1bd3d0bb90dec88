import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

WITHOUT_THE_EXTRA = """
import importlib.util
importlib.util.find_spec = lambda name: None
from agents.local_model import main
raise SystemExit(main())
"""


def test_without_the_extra_the_message_names_it() -> None:
    command = [sys.executable, "-c", WITHOUT_THE_EXTRA]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert process.returncode == 1
    assert process.stdout == ""
    assert "make local-model" in process.stderr
