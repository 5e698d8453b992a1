"""The plugin by which CI runs tests only where they have not passed elsewhere."""

import xml.etree.ElementTree as tree

from tests.support.passed_elsewhere import key_of, passed


def test_a_test_has_the_class_and_name_of_the_report_that_pytest_writes(tmp_path):
    report = tmp_path / "report.xml"
    other = {"classname": "tests.test_a.TestB", "name": "test_c[x::y]"}
    root = tree.Element("testsuites")
    for name in ("failure", "error", "skipped"):
        tree.SubElement(tree.SubElement(root, "testcase", {**other, "name": name}), name)
    tree.SubElement(root, "testcase", other)
    tree.ElementTree(root).write(report)
    assert passed(report) == {key_of("tests/test_a.py::TestB::test_c[x::y]")}
