import pytest

from node.core.models import TensorHeader
from node.model.config import read_config
from node.model.layouts import Layout
from node.model.weights import Weights, count_parameters, is_foreign
from tests.text.test_constraint import DEMO


def weights(**shapes: tuple[int, ...]) -> Weights:
    """Weights with tensors of these shapes; a double underscore stands for a dot."""
    tensors = {name.replace("__", "."): TensorHeader("f", "F32", shape, 0) for name, shape in shapes.items()}
    return Weights(tensors, {"f": 0})


def test_all_tensors_of_the_text_model_count():
    assert count_parameters(weights(lm_head__weight=(3, 4), norm__weight=(4,), mtp__x__weight=(9, 9)), {}) == 16
    demo = Layout(DEMO).weights
    own = sum(tensor.nbytes for name, tensor in demo.tensors.items() if not is_foreign(name))
    assert count_parameters(demo, read_config(DEMO)) == own // 4 < demo.total_bytes // 4


@pytest.mark.parametrize(
    ("quantization", "size"),
    [
        ({"bits": 4, "group_size": 32}, 2 * 32),
        ({"bits": 4}, 2 * 64),
        ({"bits": 4, "group_size": 32, "a": {"group_size": 16}}, 2 * 16),
        ({"bits": 4, "group_size": 32, "a": True}, 2 * 32),
        ({"group_size": "many"}, 2 * 64),
        ({"group_size": 10**400}, 2 * 64),
        ([], 2 * 64),
    ],
)
def test_of_quantized_tensors_the_scales_tell_the_number(quantization, size):
    packed = weights(a__weight=(1, 5), a__scales=(1, 2), a__biases=(1, 2), a__bias=(3,), b__weight=(7,))
    assert count_parameters(packed, {"quantization": quantization, "quantization_config": {}}) == size + 3 + 7


def test_another_quantization_is_not_known():
    assert count_parameters(weights(a__weight=(1, 5)), {"quantization_config": {"quant_method": "gptq"}}) == 0
