//! Data libraries, with the interpreter that `SANDCELL_TEST_DATA_PYTHON` names (numpy, pandas, matplotlib, pillow,
//! polars and plotly installed); skipped without it.

use std::path::PathBuf;

use sandcell_languages::python::{PythonLanguage, locate};
use sandcell_sandbox::MimeBundle;

use crate::support::Python;

async fn data_python() -> Option<Python> {
    let Some(path) = std::env::var_os("SANDCELL_TEST_DATA_PYTHON") else {
        println!("skipped: SANDCELL_TEST_DATA_PYTHON names no interpreter with data libraries");
        return None;
    };
    let runtime = locate(Some(&PathBuf::from(path))).unwrap();
    for name in ["numpy", "pandas", "matplotlib", "pillow", "polars", "plotly"] {
        assert!(
            runtime.libraries.iter().any(|library| library.starts_with(name)),
            "{name} is not there"
        );
    }
    Some(Python::with(&PythonLanguage::new(runtime)).await)
}

/// (width, height) from the header of a PNG.
fn size(bundle: &MimeBundle) -> (u32, u32) {
    let png = bundle.get("image/png").expect("a picture");
    assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"));
    let at = |from: usize| u32::from_be_bytes(png[from..from + 4].try_into().unwrap());
    (at(16), at(20))
}

fn chart(bundle: &MimeBundle) -> serde_json::Value {
    serde_json::from_slice(bundle.get("application/vnd.sandcell.chart+json").expect("chart data")).unwrap()
}

#[tokio::test]
async fn shown_and_open_figures_are_returned() {
    let Some(mut python) = data_python().await else { return };
    let ran = python
        .run("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3], [4, 5, 6], label='up')\nplt.title('T'); plt.xlabel('x'); plt.ylabel('y [m]')\nprint('first')\nplt.show()\nprint('between')\nplt.bar(['a', 'b'], [1, 2]);")
        .await
        .ok();
    assert_eq!(ran.displays.len(), 2);
    assert_eq!(ran.stdout, "first\nbetween\n");
    let (width, height) = size(&ran.displays[0]);
    assert!((300..1600).contains(&width) && (200..1200).contains(&height));
    let data = chart(&ran.displays[0]);
    assert_eq!(
        data["charts"][0],
        serde_json::json!({
            "type": "line", "title": "T", "x": {"label": "x", "scale": "linear"},
            "y": {"label": "y [m]", "scale": "linear"}, "omitted_series": 0,
            "series": [{"type": "line", "name": "up", "total": 3, "points": [[1, 4], [2, 5], [3, 6]]}],
        })
    );
    assert_eq!(
        chart(&ran.displays[1])["charts"][0]["series"][0]["points"],
        serde_json::json!([["a", 1], ["b", 2]])
    );
    assert_eq!(python.run("plt.get_fignums()").await.ok().text(), "[]");
}

#[tokio::test]
async fn a_figure_that_is_the_value_is_shown_once() {
    let Some(mut python) = data_python().await else { return };
    let ran = python
        .run("import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.scatter([1], [2])\nfig")
        .await
        .ok();
    assert_eq!(ran.displays.len(), 0);
    let result = ran.result.unwrap();
    size(&result);
    assert_eq!(result.text(), "Figure 640x480: scatter");
    let ran = python.run("ax.set_title('more')\nfig").await.ok();
    size(&ran.result.unwrap());
}

#[tokio::test]
async fn every_requested_matplotlib_back_end_is_replaced() {
    let Some(mut python) = data_python().await else { return };
    for name in ["Agg", "TkAgg", "QtAgg"] {
        let ran = python
            .run(&format!("import matplotlib\nmatplotlib.use('{name}')\nimport matplotlib.pyplot as plt\nplt.plot([1]); plt.show()"))
            .await
            .ok();
        assert_eq!((ran.displays.len(), ran.stderr.as_str()), (1, ""), "{name}");
    }
}

#[tokio::test]
async fn figures_of_cells_that_fail_are_not_lost() {
    let Some(mut python) = data_python().await else { return };
    let ran = python.run("import matplotlib.pyplot as plt\nplt.plot([1])\n1/0").await;
    assert_eq!(ran.displays.len(), 1);
    assert_eq!(ran.error().name, "ZeroDivisionError");
}

#[tokio::test]
async fn a_figure_of_fifty_thousand_pixels_becomes_a_usable_picture() {
    let Some(mut python) = data_python().await else { return };
    let ran = python
        .run("import matplotlib.pyplot as plt\nplt.figure(figsize=(500, 500)); plt.plot([1]);")
        .await
        .ok();
    let (width, height) = size(&ran.displays[0]);
    assert!(width <= 4000 && height <= 4000, "{width} x {height}");
}

#[tokio::test]
async fn chart_data_is_bounded() {
    let Some(mut python) = data_python().await else { return };
    let ran = python
        .run("import matplotlib.pyplot as plt, numpy as np\nfor i in range(100): plt.plot(np.random.rand(500 if i else 10000))\nplt.show()")
        .await
        .ok();
    let bundle = &ran.displays[0];
    assert!(bundle.get("application/vnd.sandcell.chart+json").unwrap().len() < 100_000);
    let data = chart(bundle);
    assert_eq!(data["charts"][0]["omitted_series"], 76);
    assert_eq!(data["charts"][0]["series"][0]["total"], 10000);
}

#[tokio::test]
async fn chart_data_of_dates_box_plots_and_pies_is_extracted() {
    let Some(mut python) = data_python().await else { return };
    let ran = python
        .run("import matplotlib.pyplot as plt, pandas as pd\nplt.plot(pd.date_range('2024-01-01', periods=2), [1, 2]); plt.show()\nplt.boxplot([[1, 2, 3]]); plt.show()\nplt.pie([1, 3], labels=['x', 'y']); plt.show()")
        .await
        .ok();
    let points = |at: usize| chart(&ran.displays[at])["charts"][0]["series"][0]["points"].clone();
    assert_eq!(points(0), serde_json::json!([["2024-01-01", 1], ["2024-01-02", 2]]));
    assert_eq!(points(1), serde_json::json!([["1", 1, 1.5, 2, 2.5, 3]]));
    assert_eq!(points(2), serde_json::json!([["x", 25], ["y", 75]]));
}

/// Returns a representation as JSON.
fn json(bundle: &MimeBundle, mime: &str) -> serde_json::Value {
    serde_json::from_slice(bundle.get(mime).unwrap_or_else(|| panic!("no {mime} in {bundle:?}"))).unwrap()
}

const FIGURE_TYPE: &str = "application/vnd.sandcell.figure+json";
const DATA_TYPE: &str = "application/vnd.sandcell.data+json";
const JSON_TYPE: &str = "application/json";

#[tokio::test]
async fn exact_data_is_only_sent_to_a_cell_that_asks_for_it() {
    let Some(mut python) = data_python().await else { return };
    let code = "import matplotlib.pyplot as plt, pandas as pd\nplt.plot([1, 2]); plt.show()\ndisplay(pd.DataFrame({'a': [1]}))\n{'a': 1}";
    for exact in [false, true, false] {
        python.exact = exact;
        let ran = python.run(code).await.ok();
        assert_eq!(ran.displays[0].get(FIGURE_TYPE).is_some(), exact);
        assert_eq!(ran.displays[1].get(DATA_TYPE).is_some(), exact);
        assert_eq!(ran.result.unwrap().get(JSON_TYPE).is_some(), exact);
    }
    python.exact = true;
    let code = "display({'text/latex': '$y$'}, raw=True)\ndisplay({'text/latex': '$y$', 'text/plain': 'y'}, raw=True)";
    let made = python.run(code).await.ok().displays;
    let made = made
        .iter()
        .map(|bundle| bundle.get("text/vnd.sandcell.made-text").is_some());
    assert_eq!(made.collect::<Vec<_>>(), [true, false]);
}

#[tokio::test]
async fn exact_charts_have_the_shape_of_e2b() {
    let Some(mut python) = data_python().await else { return };
    python.exact = true;
    let ran = python
        .run(
            "import matplotlib.pyplot as plt, datetime\n\
             plt.plot([datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)], [1, float('nan')]); plt.ylabel('Speed (m/s)'); plt.show()\n\
             plt.bar(['a', 'b'], [1, 2], yerr=[.1, .1], label='g'); plt.axhline(1); plt.show()\n\
             plt.barh(['a', 'b'], [3, 3]); plt.xlabel('Count'); plt.show()\n\
             plt.pie([1, 3], labels=['x', 'y']); plt.show()\n\
             plt.boxplot([[1, 2, 3, 4, 100]]); plt.show()\n\
             plt.scatter([1], [2], c=[3]); plt.colorbar(plt.gca().collections[0]); plt.show()\n\
             fig, axes = plt.subplots(1, 2); fig.suptitle('Both'); axes[0].plot([0, 1], [0, 1]); axes[1].imshow([[1]]); plt.show()\n\
             plt.axes(projection='3d').scatter([1], [2], [3]); plt.show()\n\
             plt.plot(range(100_000)); plt.show()",
        )
        .await
        .ok();
    let chart = |at: usize| json(&ran.displays[at], FIGURE_TYPE);
    let line = chart(0);
    assert_eq!(line["type"], "line");
    assert_eq!(
        (&line["y_label"], &line["y_unit"]),
        (&"Speed (m/s)".into(), &"m/s".into())
    );
    assert_eq!(
        (&line["x_scale"], &line["y_scale"]),
        (&"datetime".into(), &"linear".into())
    );
    assert_eq!(
        line["elements"],
        serde_json::json!([{"label": "Line 0", "points": [["2024-01-01", 1.0], ["2024-01-02", null]]}])
    );
    assert_eq!(
        chart(1)["elements"],
        serde_json::json!([{"label": "a", "group": "g", "value": 1.0}, {"label": "b", "group": "g", "value": 2.0}])
    );
    assert_eq!(
        (&chart(2)["x_label"], &chart(2)["y_label"]),
        (&().into(), &"Count".into())
    );
    assert_eq!(chart(2)["elements"][1]["label"], "b");
    assert_eq!(
        chart(3)["elements"],
        serde_json::json!([{"label": "x", "angle": 90.0, "radius": 1.0}, {"label": "y", "angle": 270.0, "radius": 1.0}])
    );
    assert_eq!(
        chart(4)["elements"],
        serde_json::json!([{
            "label": "1", "min": 1.0, "first_quartile": 2.0, "median": 3.0, "third_quartile": 4.0, "max": 4.0,
            "outliers": [100.0],
        }])
    );
    assert_eq!(chart(5)["type"], "scatter");
    let both = chart(6);
    assert_eq!((&both["type"], &both["title"]), (&"superchart".into(), &"Both".into()));
    let types: Vec<_> = both["elements"]
        .as_array()
        .unwrap()
        .iter()
        .map(|chart| &chart["type"])
        .collect();
    assert_eq!(types, ["line", "unknown"]);
    assert_eq!(chart(7)["type"], "unknown");
    assert!(ran.displays[8].get(FIGURE_TYPE).is_none());
}

#[tokio::test]
async fn exact_tables_and_values_are_complete_or_absent() {
    let Some(mut python) = data_python().await else { return };
    python.exact = true;
    let ran = python
        .run("import pandas as pd\npd.DataFrame({'t': pd.to_datetime(['2024-01-01', None]), 'x': [1.5, float('inf')], 3: ['a', {'b': 1}]})")
        .await
        .ok();
    assert_eq!(
        json(&ran.result.unwrap(), DATA_TYPE),
        serde_json::json!({"t": ["2024-01-01T00:00:00", null], "x": [1.5, null], "3": ["a", {"b": 1}]})
    );
    for code in [
        "pd.DataFrame([[1, 2]], columns=['a', 'a'])",
        "pd.DataFrame({'a': range(50_001)})",
    ] {
        let ran = python.run(code).await.ok();
        assert!(ran.result.unwrap().get(DATA_TYPE).is_none(), "{code}");
    }
    for (code, expected) in [
        (
            "{'a': [1, 2.5, None, True, '\u{e9}']}",
            serde_json::json!({"a": [1, 2.5, null, true, "\u{e9}"]}),
        ),
        ("[2 ** 64 - 1, -2 ** 63]", serde_json::json!([u64::MAX, i64::MIN])),
    ] {
        let ran = python.run(code).await.ok();
        assert_eq!(json(&ran.result.unwrap(), JSON_TYPE), expected, "{code}");
    }
    for code in [
        "[(1, 2)]",
        "{1: 2}",
        "[float('nan')]",
        "[2 ** 64]",
        "['\\ud800']",
        "a = []; a.append(a); a",
        "[0] * 50_000",
        "['x' * 600_000] * 2",
    ] {
        let ran = python.run(code).await.ok();
        assert!(ran.result.unwrap().get(JSON_TYPE).is_none(), "{code}");
    }
}

#[tokio::test]
async fn data_frames_are_text_within_the_bound() {
    let Some(mut python) = data_python().await else { return };
    let ran = python
        .run("import pandas as pd, numpy as np\npd.DataFrame(np.zeros((100_000, 12)), columns=[f'column_{i}' for i in range(12)])")
        .await
        .ok();
    assert!(
        ran.text().contains("column_11") && ran.text().contains("[100000 rows x 12 columns]"),
        "{}",
        ran.text()
    );
    assert!(ran.text().len() < 5000);
    let table: serde_json::Value =
        serde_json::from_slice(ran.result.unwrap().get("application/vnd.sandcell.table+json").unwrap()).unwrap();
    assert_eq!(table["rows"], 100_000);
    assert_eq!(
        table["fields"][0],
        serde_json::json!({"name": "column_0", "type": "float64"})
    );
    let ran = python
        .run("import polars as pl\npl.DataFrame({'a': range(1000)})")
        .await
        .ok();
    assert!(ran.text().starts_with("shape: (1_000, 1)"), "{}", ran.text());
    let ran = python.run("pd.DataFrame({'a': [1]})['b']").await;
    assert!(ran.error().traceback.lines().count() < 14, "{}", ran.error().traceback);
    assert!(
        ran.error().traceback.contains("calls inside pandas"),
        "{}",
        ran.error().traceback
    );
}

#[tokio::test]
async fn pictures_and_plotly_figures_have_their_mime_types() {
    let Some(mut python) = data_python().await else { return };
    let ran = python
        .run("from PIL import Image\nImage.new('RGB', (8000, 4000), 'red')")
        .await
        .ok();
    let result = ran.result.unwrap();
    assert_eq!(result.text(), "<PIL.Image.Image image mode=RGB size=8000x4000>");
    assert_eq!(size(&result), (2000, 1000));
    let ran = python
        .run("import plotly.express as px\nf = px.line(x=[1, 2], y=[3, 4], title='P')\nf.show()\nf")
        .await
        .ok();
    assert_eq!(ran.displays.len(), 1);
    let result = ran.result.unwrap();
    assert_eq!(result.text(), "P: scatter (2 points)");
    assert_eq!(
        chart(&result)["series"][0]["points"],
        serde_json::json!([[1, 3], [2, 4]])
    );
    assert!(result.get("application/vnd.plotly.v1+json").is_some());
}

#[tokio::test]
async fn errors_distinguish_a_missing_row_and_a_missing_column() {
    let Some(mut python) = data_python().await else { return };
    python
        .run("import pandas as pd\ndf = pd.DataFrame({'a': ['x', 'y'], 'b': [1, 2]})")
        .await
        .ok();
    for (code, hint) in [
        ("df.loc[5]", "the row labels (the index) are 0, 1"),
        ("df.set_index('a').loc['zz']", "the row labels (the index) are 'x', 'y'"),
        ("df.loc[0, 'zz']", "the columns are 'a', 'b'"),
        ("df['c']", "the columns are 'a', 'b'"),
        (
            "df.loc['a']",
            "the row labels (the index) are 0, 1; 'a' is a column: df['a']",
        ),
        ("df['a']['q']", "the row labels (the index) are 0, 1"),
        ("df.iloc[99]", "df has 2 rows: valid positions are 0 to 1"),
        (
            "import matplotlib.pyplot as plt\nfig, ax = plt.subplots(2, 2)\nax.plot([1])",
            "it is an array of 2x2 axes: take one of them, such as ax[0, 0].plot(...)",
        ),
    ] {
        let ran = python.run(code).await;
        assert_eq!(ran.error().hint, hint, "{code}");
    }
}

#[tokio::test]
async fn sympy_prints_as_it_does_in_notebooks() {
    let Some(mut python) = data_python().await else { return };
    let ran = python
        .run("import importlib.util\nimportlib.util.find_spec('sympy') is None")
        .await
        .ok();
    if ran.text() == "True" {
        println!("skipped: the interpreter has no sympy");
        return;
    }
    let ran = python
        .run("import sympy; sympy.init_printing()\nx = sympy.symbols('x')\nsympy.Integral(x**2, x)")
        .await
        .ok();
    assert!(
        ran.text().contains('⌠') && ran.text().contains("x  dx"),
        "{}",
        ran.text()
    );
    let ran = python.run("sympy.init_session()").await.ok();
    assert!(ran.stdout.contains("symbols('x y z t')"), "{}", ran.stdout);
    assert_eq!(python.run("z + t").await.ok().text(), "t + z");
}

#[tokio::test]
async fn progress_bars_leave_no_thread() {
    let Some(mut python) = data_python().await else { return };
    let ran = python
        .run("import threading, importlib.util\nimportlib.util.find_spec('tqdm') is None")
        .await
        .ok();
    if ran.text() == "True" {
        println!("skipped: the interpreter has no tqdm");
        return;
    }
    python
        .run("from tqdm import tqdm\nfor i in tqdm(range(3)): pass")
        .await
        .ok();
    assert_eq!(python.run("threading.active_count()").await.ok().text(), "1");
}

#[tokio::test]
async fn a_library_is_configured_on_import_and_not_on_lookup() {
    let Some(mut python) = data_python().await else { return };
    python
        .run("import importlib.util\nfor name in ('pandas', 'matplotlib'): importlib.util.find_spec(name)")
        .await
        .ok();
    let ran = python
        .run("import pandas as pd\npd.get_option('display.max_columns')")
        .await
        .ok();
    assert_eq!(ran.text(), "20");
    let ran = python.run("pd.reset_option('all', silent=True) if False else pd.reset_option('display.max_columns')\npd.get_option('display.max_columns')").await.ok();
    assert_eq!(ran.text(), "20");
    let ran = python
        .run("import matplotlib.pyplot as plt\nplt.plot([1]); plt.show()")
        .await
        .ok();
    assert_eq!(ran.displays.len(), 1);
}

/// Returns the first series of the first chart that a cell shows.
async fn drawn(python: &mut Python, code: &str) -> serde_json::Value {
    let ran = python.run(&format!("{code}\nplt.show()")).await.ok();
    chart(&ran.displays[0])["charts"][0].clone()
}

#[tokio::test]
async fn the_data_of_every_kind_of_plot_can_be_read() {
    let Some(mut python) = data_python().await else { return };
    python
        .run("import matplotlib.pyplot as plt, numpy as np\nX, Y = np.meshgrid(np.arange(4), np.arange(3))")
        .await
        .ok();
    let space = "ax = plt.figure().add_subplot(projection='3d'); ax.set_zlabel('depth')\n";
    let found = drawn(&mut python, &format!("{space}ax.scatter([1, 2], [3, 4], [5, 6])")).await;
    assert_eq!(found["series"][0]["points"], serde_json::json!([[1, 3, 5], [2, 4, 6]]));
    assert_eq!(
        (&found["type"], &found["z"]["label"]),
        (&"scatter3d".into(), &"depth".into())
    );
    let found = drawn(&mut python, &format!("{space}ax.plot_surface(X, Y, X * Y)")).await;
    assert_eq!(
        (&found["type"], &found["series"][0]["total"]),
        (&"surface".into(), &12.into())
    );
    assert_eq!(found["series"][0]["range"], serde_json::json!([0, 6]));
    let found = drawn(
        &mut python,
        "plt.contourf(X, Y, X * Y, levels=[0, 2, 4, 6]); plt.colorbar(label='h')",
    )
    .await;
    assert_eq!(found["series"][0]["points"], serde_json::json!([[0], [2], [4], [6]]));
    assert_eq!(found["colours"]["label"], "h");
    let found = drawn(&mut python, "plt.quiver([1, 2], [1, 2], [3, 4], [5, 6])").await;
    assert_eq!(
        found["series"][0]["points"],
        serde_json::json!([[1, 1, 3, 5], [2, 2, 4, 6]])
    );
    let found = drawn(
        &mut python,
        "plt.stackplot([1, 2, 3], [1, 1, 1], [2, 2, 2]); plt.axhline(2); plt.annotate('peak', (2, 3))",
    )
    .await;
    assert_eq!(found["annotations"], serde_json::json!(["peak"]));
    let kinds: Vec<_> = found["series"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["type"].as_str().unwrap(), one["points"].to_string()))
        .collect();
    assert_eq!(
        kinds,
        [
            ("hline", "[[2]]".to_owned()),
            ("area", "[[1,0,1],[2,0,1],[3,0,1]]".to_owned()),
            ("area", "[[1,1,3],[2,1,3],[3,1,3]]".to_owned()),
        ]
    );
    let found = drawn(&mut python, "plt.errorbar([1, 2], [3, 4], yerr=[0.5, 1])").await;
    assert_eq!(
        found["series"][0]["points"],
        serde_json::json!([[1, 3, 2.5, 3.5], [2, 4, 3, 5]])
    );
    let found = drawn(&mut python, "plt.scatter([1, 2], [3, 4], c=[5, 6], s=[10, 20])").await;
    assert_eq!(
        found["series"][0]["fields"],
        serde_json::json!(["x", "y", "colour value", "size"])
    );
    let found = drawn(&mut python, "plt.bar(['a', 'b'], [1, 2], bottom=[1, 1])").await;
    assert_eq!(
        found["series"][0]["points"],
        serde_json::json!([["a", 1, 1], ["b", 2, 1]])
    );
    let found = drawn(&mut python, "plt.hist([1, 1, 2, 3, 3, 3], bins=4)").await;
    assert_eq!(
        found["series"][0]["points"],
        serde_json::json!([[1, 1.5, 2], [1.5, 2, 0], [2, 2.5, 1], [2.5, 3, 3]])
    );
}

#[tokio::test]
async fn a_figure_that_cannot_be_drawn_is_an_error() {
    let Some(mut python) = data_python().await else { return };
    let ran = python
        .run("import matplotlib.pyplot as plt\nfig, ax = plt.subplots(); ax.set_title('$\\\\frac{bad$'); plt.show()")
        .await;
    assert_eq!((ran.error().name.as_str(), ran.displays.len()), ("ValueError", 0));
    assert_eq!(python.run("plt.get_fignums()").await.ok().text(), "[]");
    let ran = python
        .run("plt.plot([1]); plt.title('\u{6f22}'); plt.show()")
        .await
        .ok();
    assert_eq!(ran.displays.len(), 1);
    assert!(
        !ran.stderr.contains("sandcell") && ran.stderr.lines().count() <= 1,
        "{}",
        ran.stderr
    );
}

#[tokio::test]
async fn pictures_data_frames_and_html_are_shown_by_kind() {
    let Some(mut python) = data_python().await else { return };
    let ran = python
        .run("from PIL import Image\nImage.new('RGB', (5, 7)).show()")
        .await
        .ok();
    assert_eq!(size(&ran.displays[0]), (5, 7));
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
    let ran = python
        .run("import polars as pl\npl.DataFrame({'a': [1]}).lazy()")
        .await
        .ok();
    assert_eq!(ran.stderr, "");
    let ran = python
        .run("import pandas as pd\npd.DataFrame({'a': [1, 2]}).style.highlight_max()")
        .await
        .ok();
    assert_eq!(ran.text(), "   a\n0  1\n1  2");
    assert!(ran.result.unwrap().get("text/html").is_some());
}

#[tokio::test]
async fn errors_of_tables_name_the_likely_mistake() {
    let Some(mut python) = data_python().await else { return };
    for (code, hint) in [
        (
            "import pandas as pd, io\ndf = pd.read_csv(io.StringIO('item;price\\na;1'))\ndf['price']",
            "the file seems to be separated by ';': read it again with sep=';'",
        ),
        (
            "df = pd.DataFrame({'first': ['A', 'B'], 'last': ['X', None]})\n[r['first'] + ' ' + r['last'] for _, r in df.iterrows()]",
            "df['last'] has missing values",
        ),
        (
            "df = pd.DataFrame({'team': ['a', 'b'], 'player': ['x', 'y'], 'score': ['1', '2']})\ndf.groupby('team').mean()['score']",
            "df['score'] holds text: pd.to_numeric(",
        ),
        (
            "df.groupby('team').mean()",
            "text columns: 'team', 'player', 'score'; leave them out",
        ),
    ] {
        let ran = python.run(code).await;
        assert!(ran.error().hint.contains(hint), "{code}: {}", ran.error().hint);
    }
}
