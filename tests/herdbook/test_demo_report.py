"""The verdict of a demonstration: anything short of everything is not ok."""

from herdbook.demo_report import Report, quantile


def report(files: int, read_back: int, different: list[str]) -> Report:
    made = Report("folder", "data", 3, files=files, read_back=read_back)
    made.different = different
    return made


def test_only_a_whole_and_equal_folder_is_ok() -> None:
    assert report(3, 3, []).ok
    assert not report(3, 2, []).ok
    assert not report(3, 2, ["file"]).ok
    assert not report(0, 0, []).ok


def test_quantiles_are_values_that_occurred() -> None:
    values = [float(number) for number in range(100)]
    assert quantile(values, 0.5) == 50.0
    assert quantile(values, 0.99) == 99.0
    assert quantile([], 0.5) == 0.0
