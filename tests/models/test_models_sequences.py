"""The jobs of dsinga.models over sequences: their nets, and the job files written from them."""

import pytest

from dsinga import models
from dsinga.job import Phase, check
from dsinga.layers import RecordInfo
from dsinga.models.rnnlm import frequency_classes
from dsinga.net import create_net
from tests.support.refusals import refused

WNUT17 = {"words": 3706, "shapes": 429, "prefixes": 2290, "suffixes": 2116}
SENTENCES = RecordInfo((41,), 32, label_range=(0, 12), label_shape=(41,))


@pytest.mark.parametrize(("crf", "params"), [(True, 13 * 13 + 13), (False, 0)])
def test_a_tagger_with_and_without_a_conditional_random_field(crf: bool, params: int):
    net = create_net(models.bigru_crf(WNUT17, 13, crf=crf).net, Phase.kTrain, dict.fromkeys(WNUT17, SENTENCES))
    embedded = 64 * 3706 + 16 * 429 + 24 * (2290 + 2116)
    recurrent = 2 * 3 * 64 * (128 + 64 + 1)
    assert sum(param.size for param in net.params.values()) == embedded + recurrent + 13 * (128 + 1) + params
    assert net.layer("scores").shape == (32, 41, 13)
    assert net.losses == ("tags",)


def test_words_without_other_stores_suffice():
    net = create_net(models.bigru_crf({"words": 9}, 13).net, Phase.kVal, {"words": SENTENCES})
    assert net.layer("embedding").shape == (32, 41, 64)
    assert net.layer("entities").shape == (32, 41)


COUNTS = [50, 20, 10, 5, 5, 4, 3, 2, 1]


def test_classes_of_words_have_about_equal_shares_of_the_text():
    assert frequency_classes(COUNTS, 1) == [0]
    assert frequency_classes(COUNTS, 2) == [0, 2]
    assert frequency_classes([1] * 9, 3) == [0, 4, 7]
    assert frequency_classes([98, 1, 1], 3) == [0, 1, 2]


def test_a_language_model_of_words_has_the_weights_of_its_factors():
    job = models.rnnlm(COUNTS, classes=2, hidden=4, steps=3, batchsize=2)
    check(job, [Phase.kTrain, Phase.kVal, Phase.kTest])
    text = RecordInfo((4,), 2, has_labels=False)
    net = create_net(job.net, Phase.kVal, {"text": text})
    shapes = {name: param.shape for name, param in net.params.items()}
    assert shapes == {
        "embedding_weight": (9, 4),
        "hidden_hx": (4, 4),
        "hidden_hh": (4, 4),
        "hidden_b": (4,),
        "loss_word": (9, 4),
        "loss_class": (2, 4),
    }
    assert net.layer("loss").shape == (2, 3)


@pytest.mark.parametrize(("cell", "gates"), [("kGRU", 3), ("kLSTM", 4), ("kRNN", 1)])
def test_a_char_rnn_of_two_layers_of_each_kind(cell: str, gates: int):
    job = models.char_rnn(7, hidden=5, layers=2, cell=cell, steps=4, batchsize=3)
    net = create_net(job.neuralnet, Phase.kTest, {"data": RecordInfo((5,), 3, has_labels=False, codes=7)})
    recurrent = gates * 5 * (7 + 5 + 1) + gates * 5 * (5 + 5 + 1)
    assert sum(param.size for param in net.params.values()) == recurrent + 7 * 5 + 7
    assert net.layer("loss").shape == (3, 4, 7)


def test_an_unknown_cell_or_store_is_refused():
    refused(lambda: models.char_rnn(7, cell="GRU"), "there is no LayerType 'GRU'; did you mean 'kGRU'?")
    refused(lambda: models.bigru_crf({"chars": 4}, tags=3), r"'words' and may have others of .*, not \['chars'\]")
