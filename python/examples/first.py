"""The first steps: a throwaway run, a sandbox that keeps its variables, and what a failure looks like."""

import sandcell
from sandcell import Sandbox

print(sandcell.run("print('hello from inside')").stdout, end="")

with Sandbox() as sandbox:
    sandbox.files.write("sales.csv", "month,amount\n1,20\n2,22\n")
    sandbox.run("import csv; rows = list(csv.DictReader(open('sales.csv')))").check()
    print("sum:", sandbox.run("sum(int(row['amount']) for row in rows)").result)

    run = sandbox.run("rows[5]")
    if not run.ok and run.error and run.cause:
        print("failed:", run.error.name, "-", run.cause.remedy.split(";")[0])

    print("timeout:", sandbox.run("while True: pass", timeout=0.5).status)
    print("still there:", sandbox.run("len(rows)").result)
