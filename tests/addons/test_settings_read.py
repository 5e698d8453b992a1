"""Settings in Dask's configuration that the core, the cluster and the add-ons read."""

import yaml

from tests.support.executed_pages import ROOT


def test_every_setting_that_the_package_reads_is_one_of_them():
    read = {
        line.split('read_setting("')[1].split('"')[0]
        for file in (ROOT / "dsinga").rglob("*.py")
        for line in file.read_text().splitlines()
        if 'read_setting("' in line
    }
    defaults = yaml.safe_load((ROOT / "dsinga" / "base" / "dsinga.yaml").read_text())
    assert read == defaults["dsinga"].keys()
    others = [file for file in (ROOT / "dsinga").rglob("*.py") if 'config.get("dsinga.' in file.read_text()]
    assert not others, "read_setting checks what it reads"
