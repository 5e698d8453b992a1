"""The HTML table of a job in a notebook."""

from xml.etree import ElementTree

from dsinga.job import loads

JOB = """name: "<b>&"
train_steps: 10
cluster { nworkers_per_group: 2 }
net {
  layer { name: "data" type: kRecordInput include: kTrain store_conf { path: "a<b" shape: [1, 8, 8] std_value: 16 } }
  layer {
    name: "conv" type: kConvolution srclayers: "data" convolution_conf { num_filters: 3 }
    param { name: "w" init { type: kGaussian std: 0.1 } } param { name: "b" share_from: "c" } param { name: "d" }
    param { init { type: kUniform } } param { share_from: "c" }
  }
  layer { name: "mine" user_type: "kMine" srclayers: "conv" srclayers: "data" exclude: kTest bm_conf { } [x] { y: 1 } }
}
"""


def picture(text):
    # Well-formed by construction: a parser that forgives nothing reads it.
    return ElementTree.fromstring(f"<body>{loads(text)._repr_html_()}</body>")


def test_there_is_a_row_for_each_layer():
    rows = [["".join(cell.itertext()) for cell in row] for row in picture(JOB).iter("tr")]
    assert rows == [
        ["layer", "type", "sources", "configuration", "params", "phases"],
        ["data", "kRecordInput", "", "path a<b, std_value 16, shape 1×8×8", "", "kTrain"],
        ["conv", "kConvolution", "data", "num_filters 3", "w (kGaussian), b = c, d, kUniform, = c", ""],
        ["mine", "kMine", "conv, data", "bm_conf, y 1", "", "not kTest"],
    ]


def test_the_first_line_summarises_the_training():
    head = "".join(picture(JOB).find("div").itertext())
    assert head == "<b>&: 10 steps of kBP, kSGD at 0.01 (kFixed), 1 × 2 workers"


def test_a_job_of_epochs_is_summarised_by_their_number():
    head = "".join(picture("epochs: 3").find("div").itertext())
    assert head.startswith("job: 3 epochs of kBP")


def test_rates_in_steps_are_all_shown():
    rate = "learning_rate { type: kFixedStep fixedstep_conf { step: [0, 9] step_lr: [0.1, 1e-5] } }"
    head = "".join(picture(f"updater {{ type: kSGD {rate} }}").find("div").itertext())
    assert head == "job: 0 steps of kBP, kSGD at 0.1, 1e-05 (kFixedStep)"


def test_an_empty_job_has_a_table_too():
    assert len(list(picture("").iter("tr"))) == 1
