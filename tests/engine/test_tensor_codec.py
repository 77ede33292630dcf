import mlx.core as mx
import pytest

from node.core.errors import PippinError
from node.core.frames import Tensor
from node.engine.tensor_codec import pack, token_array, unpack, unpack_tokens

DTYPES = [
    mx.bool_, mx.uint8, mx.uint16, mx.uint32, mx.int8, mx.int16, mx.int32, mx.int64, mx.float16, mx.bfloat16, mx.float32,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3, 5), (), (0, 4), (1,)])
def test_arrays_come_back_as_they_were(dtype, shape):
    array = (mx.random.normal(shape, key=mx.random.key(1)) * 100).astype(dtype)
    (tensor,) = pack([array])
    assert tensor.dtype == str(dtype).removeprefix("mlx.core.")
    assert tensor.shape == shape
    assert isinstance(tensor.data, bytes)
    (back,) = unpack([tensor])
    assert back.dtype == dtype
    assert back.shape == array.shape
    assert bool(mx.array_equal(back, array))


def test_bytes_are_row_major_and_little_endian():
    tensors = pack([mx.array([[1, 2], [3, 4]], mx.int32).T, mx.array([1.0], mx.bfloat16)])
    assert tensors[0].data == bytes([1, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0])
    assert tensors[1].data == b"\x80\x3f"


def test_special_values_survive():
    for dtype in (mx.float32, mx.bfloat16, mx.float16):
        (back,) = unpack(pack([mx.array([float("nan"), float("inf"), -float("inf"), -0.0], dtype)]))
        assert bool(mx.isnan(back[0]))
        assert back[1:3].tolist() == [float("inf"), -float("inf")]


def test_slices_that_share_memory_are_packed_as_themselves():
    whole = mx.arange(24).reshape(2, 3, 4).astype(mx.bfloat16)
    (back,) = unpack(pack([whole[:, 1:, ::2]]))
    assert bool(mx.array_equal(back, whole[:, 1:, ::2]))


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("float32", (2, 2), b"\0" * 15),
        Tensor("float32", (2, 2), b"\0" * 17),
        Tensor("float32", (2, 2), b""),
        Tensor("bfloat16", (3,), b"\0" * 5),
        Tensor("float64", (1,), b"\0" * 8),
        Tensor("complex64", (1,), b"\0" * 8),
        Tensor("", (1,), b"\0"),
        Tensor("float32", (-1, -1), b"\0" * 4),
        Tensor("uint8", (2**40, 2**40), b"\0"),
        Tensor("uint8", (2**40, 0), b""),
    ],
)
def test_what_does_not_fit_is_refused(tensor):
    with pytest.raises(PippinError):
        unpack([tensor])


@pytest.mark.parametrize("ids", [[[0, 5, 127]], [[127], [0]]])
def test_tokens_of_the_vocabulary_come_back(ids):
    (tensor,) = pack([mx.array(ids, mx.int32)])
    array = unpack_tokens(tensor, 128)
    assert array.dtype == mx.int32
    assert array.tolist() == ids


@pytest.mark.parametrize("ids", [mx.array([[0, 128]]), mx.array([[-1, 5]]), mx.array([[1.0]]), mx.array([[True]])])
def test_other_tokens_are_refused(ids):
    (tensor,) = pack([ids])
    with pytest.raises(PippinError, match="not among the model's 128"):
        unpack_tokens(tensor, 128)


def test_what_cannot_travel_is_refused():
    with pytest.raises(PippinError, match="complex64"):
        pack([mx.array([1j])])


def test_token_array_fills_rows_on_the_right():
    tokens = token_array([[1, 2, 3], [4]])
    assert tokens.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert tokens.dtype == mx.int32
