"""From nothing to a plot. The sandbox installs the libraries first, unless they are on this machine already."""

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

with Sandbox(packages=["pandas", "matplotlib"], timeout=120) as sandbox:
    sandbox.files.write("sales.csv", "month,amount\n1,20\n2,22\n3,19\n")
    run = sandbox.run(CODE).check()
    run.images[0].save(sys.argv[1] if len(sys.argv) > 1 else "plot.png")
    print(run.result)
