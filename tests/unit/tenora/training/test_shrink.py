"""Which layers of a base model a smaller one keeps."""

import pytest

from tenora.training.shrink import kept_layers


@pytest.mark.parametrize(("wanted", "kept"), [(2, [0, 29]), (4, [0, 10, 19, 29]), (30, list(range(30)))])
def test_the_first_and_the_last_layer_stay_and_the_others_are_evenly_apart(wanted, kept):
    assert kept_layers(30, wanted) == kept


@pytest.mark.parametrize("wanted", [0, 1, 31])
def test_a_number_of_layers_that_cannot_be_kept_is_refused(wanted):
    with pytest.raises(ValueError, match="the model has 30 layers"):
        kept_layers(30, wanted)
