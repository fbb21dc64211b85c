"""The check that all tests that mutate weights files share: our reader and the library read the same tensors, byte for
byte.
"""

from collections.abc import Sequence

import safetensors

from adapters.safetensors_header import TensorEntry


def assert_same_tensors(content: bytes, tensors: Sequence[TensorEntry]) -> None:
    """Fail when the safetensors library refuses ``content``, or reads other tensors from it."""
    theirs = {name: (each["dtype"], list(each["shape"]), bytes(each["data"]))
              for name, each in safetensors.deserialize(content)}  # fmt: skip
    ours = {tensor.name: (tensor.dtype, list(tensor.shape), content[tensor.begin : tensor.end]) for tensor in tensors}
    assert ours == theirs
