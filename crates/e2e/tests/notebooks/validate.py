"""Reads a notebook as Jupyter does, looks whether it is one by the book, and runs it with Jupyter's own runner.

Usage: validate.py FILE.ipynb
stdout is a JSON list: for each code cell what its outputs are now, streams by that word, all else by its richest type.
"""

import json
import os
import sys
import tempfile

import nbclient
import nbformat

RICH = ("image/png", "image/svg+xml", "text/plain")


def kind(output):
    if output.output_type in ("stream", "error"):
        return output.output_type
    return next(mime for mime in RICH if mime in output.data)


def main():
    notebook = nbformat.read(sys.argv[1], as_version=4)
    nbformat.validate(notebook)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JUPYTER_RUNTIME_DIR"] = os.environ["IPYTHONDIR"] = folder
        nbclient.NotebookClient(notebook, timeout=60, allow_errors=True, resources={"metadata": {"path": folder}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    print(json.dumps([[kind(output) for output in cell.outputs] for cell in cells]))


main()
