"""The media store that settings name, whose implementation is imported only then."""

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from stores.errors import StoreConfigurationError
from stores.media.messages import MediaChoice

_KNOWN = "mongodb, disk:PATH, s3://BUCKET/PREFIX or none"

_NEEDED = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")

_DEFAULT_REGION = "us-east-1"


def open_media_store(name: str, environment: Mapping[str, str] = os.environ) -> MediaChoice:
    """The media store for `PERDURE_MEDIA`. Nothing is opened before the first call.

    Args:
        name: `mongodb`, the one of the step store; `disk:PATH`; `s3://BUCKET` or with a prefix of
            keys; or `none`, which keeps all content in the messages.
        environment: for S3: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_REGION` and
            `AWS_ENDPOINT_URL`, for what is not Amazon's.

    Raises:
        StoreConfigurationError: the name is unknown, or what it needs is missing. Not retryable.
    """
    kind, _, rest = name.partition(":")
    if name == "mongodb":
        return "auto"
    if name == "none":
        return None
    if kind == "disk" and rest:
        from stores.media.disk import DiskMediaStore  # noqa: PLC0415 - see the module's docstring

        return DiskMediaStore(rest)
    address = urlsplit(name)
    if kind == "s3" and address.netloc:
        missing = [each for each in _NEEDED if not environment.get(each)]
        if missing:
            msg = f"PERDURE_MEDIA={name} needs {' and '.join(missing)} in the environment; set them"
            raise StoreConfigurationError(msg)
        from stores.media.s3 import S3MediaStore  # noqa: PLC0415 - see the module's docstring

        region = environment.get("AWS_REGION") or _DEFAULT_REGION
        prefix = address.path.strip("/")
        return S3MediaStore(
            bucket=address.netloc,
            endpoint=environment.get("AWS_ENDPOINT_URL") or f"https://s3.{region}.amazonaws.com",
            region=region,
            access_key_id=environment["AWS_ACCESS_KEY_ID"],
            secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
            key_prefix=f"{prefix}/" if prefix else "",
        )
    msg = f"PERDURE_MEDIA={name} names no media store; pass {_KNOWN}"
    raise StoreConfigurationError(msg)
