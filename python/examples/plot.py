"""From nothing to a plot. The libraries are installed unless this machine's Python has them."""

import sys

from sandcell import Sandbox

CODE = """
import matplotlib.pyplot as plt
import pandas as pd

sales = pd.read_csv("sales.csv")
sales.plot(x="month", y="amount")
plt.show()
sales.describe()
"""

with Sandbox(timeout=120) as sandbox:
    if not sandbox.run("import matplotlib, pandas").ok:
        sandbox.install("matplotlib", "pandas")
    sandbox.files.write("sales.csv", "month,amount\n1,20\n2,22\n3,19\n")
    run = sandbox.run(CODE).check()
    run.images[0].save(sys.argv[1] if len(sys.argv) > 1 else "plot.png")
    print(run.result)
