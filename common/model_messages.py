"""The messages that only dense models need: which tensors there are. Shapes only, as common.messages."""

from __future__ import annotations

from common.array_types import Array

from .fields import Message, array, message


@message
class Create(Message):
    """Says which tensors a dense model has, or, without `spec`, asks; common.tensors says what `spec` holds."""

    spec: Array | None = array("u1", rank=1, optional=True)


@message
class Created(Message):
    """The server's tensors. `fill`: nobody has brought their values yet, assign all of them; else they are here."""

    fill: bool
    spec: Array = array("u1", rank=1)
