"""A pip that knows `python-dateutil`, which needs `six`. Modules appear in the working folder."""

import json, re, sys
known = {"six": "1.17.0", "python-dateutil": "2.9.0"}
needs = {"python-dateutil": ["six"]}
words = sys.argv[1:]
assert words[:3] == ["-m", "pip", "install"] and "--no-input" in words, words
names = words[words.index("--") + 1:]
if "--dry-run" in words:
    wanted = []
    for name in (re.split("[<>=!~ ;]", word)[0] for word in names):
        if name not in known:
            sys.exit(f"ERROR: No matching distribution found for {name}")
        wanted += [name, *needs.get(name, [])]
    print(json.dumps({"version": "1", "install": [{"metadata": {"name": name, "version": known[name]}} for name in wanted]}))
else:
    assert "--no-deps" in words, words
    for name, version in (word.split("==") for word in names):
        open(name.replace("-", "_") + ".py", "w").write(f"__version__ = {version!r}")
