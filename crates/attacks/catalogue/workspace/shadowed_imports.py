# attack: make the driver of the session import modules that the code wrote
# class: workspace
# layer: protocol
# expect: held
# fresh: yes

# in: a
NAMES_OF_MODULES = ("json", "struct", "traceback", "linecache", "io", "re", "sitecustomize", "usercustomize", "marshal", "inspect", "base64", "tokenize")
for name in NAMES_OF_MODULES:
    open(f"/home/user/{name}.py", "w").write("open('/home/user/shadowed', 'a').write(__name__)\nraise SystemExit('shadowed')\n")
# tool: execute_code {"code": "def f():\n    return 1 / 0\nf()"}
# tool: execute_code {"code": "import os\nfor n in os.listdir('/home/user'):\n    if n.endswith('.py'):\n        os.unlink('/home/user/' + n)"}
# in: a
verdict("ZeroDivisionError" not in ANSWERS[0]["text"] or "line 2" not in ANSWERS[0]["text"] or os.path.exists("/home/user/shadowed"), ANSWERS)
