"""The report of predicted and measured times: medians of turns, and strategies that are ranked wrong."""

from xml.etree import ElementTree

from tools.benchmarks.bench_plan import SETUPS
from tools.benchmarks.plan_report import Figures, draw, medians, misranked, table

ROWS = [
    Figures("net, 2 threads, fp32", "data", predicted, 10.0, 5.0, 6.0) for predicted in (9.0, 11.0, 14.0)
] + [Figures("net, 2 threads, fp32", "feature", 10.5, 20.0, 5.0, 6.0)]  # fmt: skip


def test_turns_count_by_their_medians() -> None:
    data, feature = medians(ROWS)
    assert (data.predicted, data.measured, round(data.error, 6)) == (11.0, 10.0, 0.1)
    assert misranked([data, feature]) == [(data, feature)]
    text = table(ROWS)
    assert "2 figures: error 28.8% in the median, -48% at worst" in text
    assert "misranked: net, 2 threads, fp32: data, feature" in text


def test_strategies_about_as_fast_may_be_ranked_either_way() -> None:
    close = [ROWS[0]._replace(strategy="hybrid", measured=11.0, predicted=8.0), ROWS[0]]
    assert not misranked(close)
    assert "all strategies are ranked right" in table(close)


def test_the_picture_has_a_dot_for_each_figure_in_a_setup_of_the_command() -> None:
    rows = [Figures(str(setup), name, 9.0, 10.0, 5.0, 6.0) for setup in SETUPS for name in setup.strategies]
    assert len(rows) >= 30
    titles = [title for title in ElementTree.fromstring(draw(rows)).iter() if title.tag.endswith("title")]
    assert len(titles) == len(rows)  # each dot has one, those of the legend have none
