"""The data of charts, tables, dictionaries and lists. The Python of the sandboxes has matplotlib and pandas."""

import pytest


def chart(sandbox, code):
    ran = sandbox.run_code("import matplotlib.pyplot as plt, pandas as pd\n" + code + "\nplt.show()")
    assert ran.error is None, ran.error
    [result] = [one for one in ran.results if one.png]
    assert result.chart is not None, result.formats()
    return result.chart


def test_lines_and_points_are_complete(sandbox):
    found = chart(
        sandbox,
        "plt.plot(range(1000), [n * n / 7 for n in range(1000)], label='squares')\n"
        "plt.title('T'); plt.xlabel('time (s)'); plt.ylabel('way [m]'); plt.yscale('symlog')",
    )
    assert (found.type.value, found.title, found.x_label, found.x_unit, found.y_unit) == ("line", "T", "time (s)", "s", "m")
    assert (found.x_scale.value, found.y_scale.value) == ("linear", "symlog")
    assert found.x_ticks and len(found.x_ticks) == len(found.x_tick_labels)
    [line] = found.elements
    assert line.label == "squares" and line.points[999] == (999, 999 * 999 / 7) and len(line.points) == 1000
    points = chart(sandbox, "plt.scatter([1, 2], [3, 4], label='s')")
    assert (points.type.value, points.elements[0].points) == ("scatter", [(1, 3), (2, 4)])


def test_bars_pies_and_boxes_have_their_parts(sandbox):
    bars = chart(sandbox, "plt.bar(['a', 'b'], [1, 2.5], label='g')")
    assert [(one.label, one.group, one.value) for one in bars.elements] == [("a", "g", 1), ("b", "g", 2.5)]
    pie = chart(sandbox, "plt.pie([1, 3], labels=['a', 'b'])")
    assert [(one.label, round(one.angle)) for one in pie.elements] == [("a", 90), ("b", 270)]
    boxes = chart(sandbox, "plt.boxplot([[1, 2, 3, 4, 50]], patch_artist=True)")
    [box] = boxes.elements
    assert (boxes.type.value, box.median, box.first_quartile, box.outliers) == ("box_and_whisker", 3, 2, [50])
    both = chart(sandbox, "_, (one, other) = plt.subplots(1, 2)\none.plot([1, 2]); other.bar(['x'], [1])")
    assert (both.type.value, [one.type.value for one in both.elements]) == ("superchart", ["line", "bar"])


def test_tables_dictionaries_and_lists_have_their_data(sandbox):
    table = sandbox.run_code("import pandas as pd\npd.DataFrame({'x': [1, None], 'when': pd.to_datetime(['2026-01-02', None])})")
    assert table.results[0].data == {"x": [1.0, None], "when": ["2026-01-02T00:00:00", None]}, table.results[0].data
    assert table.results[0].html
    value = sandbox.run_code("{'a': [1, 2.5, None, True, 'ü'], 'b': {}}").results[0]
    assert value.json == {"a": [1, 2.5, None, True, "ü"], "b": {}} and value.text.startswith("{'a'")
    assert sandbox.run_code("[1, 2]").results[0].json == [1, 2]
    for other in ("(1, 2)", "{1: 2}", "[float('nan')]", "{1}", "'text'", "5"):
        assert sandbox.run_code(other).results[0].json is None, other


@pytest.mark.parametrize("code", ["print([1, 2])", "x = {}", "import math\nmath.pi"])
def test_other_code_has_none(sandbox, code):
    assert all(result.json is None and result.data is None and result.chart is None for result in sandbox.run_code(code).results)
