"""smolagents' E2BExecutor, unchanged, with the server in E2B's variables. Prints a line for each check. No model is needed."""

import sys
from smolagents import AgentError, FinalAnswerTool, LogLevel, Tool
from smolagents.monitoring import AgentLogger
from smolagents.remote_executors import E2BExecutor

failures = 0


def check(name, got, want=True):
    global failures
    if got == want:
        print(f"ok {name}")
    else:
        failures += 1
        print(f"WRONG {name}: got {got!r}, want {want!r}")


class Doubler(Tool):
    name = "doubler"
    description = "Doubles a number."
    inputs = {"number": {"type": "integer", "description": "The number."}}
    output_type = "integer"

    def forward(self, number: int) -> int:
        return number * 2


executor = E2BExecutor([], AgentLogger(level=LogLevel.OFF))
try:
    info = executor.sandbox.get_info()
    check("lives five minutes, as E2B's SDK says", round((info.end_at - info.started_at).total_seconds()), 300)
    check("value of the last expression", executor("6 * 7").output, "42")
    check("logs", executor("print('one'); print('two')").logs.split(), ["one", "two"])
    executor("kept = [1, 2, 3]")
    check("variables stay", executor("sum(kept)").output, "6")
    check("no output", executor("x = 1").output, None)

    executor.send_variables({"text": "äöü \u2028 \U0001f600", "pair": (1, 2), "raw": b"\x00\xff", "nested": {"a": [None, True, 1.5]}})
    check("text sent", executor("text == '\\xe4\\xf6\\xfc \\u2028 \\U0001f600'").output, "True")
    check("tuple and bytes sent", executor("(pair, raw)").output, "((1, 2), b'\\x00\\xff')")
    check("dictionary sent", executor("nested['a'][2] + 1").output, "2.5")

    try:
        executor("def broken():\n    return 1 / 0\nbroken()")
        check("an error raises", False)
    except AgentError as error:
        check("an error raises", "ZeroDivisionError" in str(error) and "broken" in str(error))
    check("usable after an error", executor("1 + 1").output, "2")

    executor.send_tools({"doubler": Doubler(), "final_answer": FinalAnswerTool()})
    check("a tool runs inside", executor("doubler(21)").output, "42")
    answer = executor("final_answer({'answer': doubler(4), 'items': (1, 'zwei')})")
    check("final answer", (answer.is_final_answer, answer.output), (True, {"answer": 8, "items": (1, "zwei")}))
    check("not every answer is final", executor("doubler(1)").is_final_answer, False)

    picture = executor(
        "import base64\n"
        "class Dot:\n"
        "    def _repr_png_(self):\n"
        "        return base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg==')\n"
        "Dot()"
    ).output
    check("a picture", getattr(picture, "size", None), (1, 1))
finally:
    sandbox = executor.sandbox
    executor.cleanup()
check("cleanup ends the sandbox", sandbox.is_running(), False)
sys.exit(1 if failures else 0)
