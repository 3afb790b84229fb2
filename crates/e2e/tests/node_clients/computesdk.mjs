// ComputeSDK with its E2B provider, unchanged: `computesdk.mjs MODULES`, with the server in E2B's variables. Prints a line for each check.
import { deepStrictEqual } from "node:assert";
import { createRequire } from "node:module";

const { e2b } = createRequire(process.argv[2] + "/")("@computesdk/e2b");

let failures = 0;
function check(name, got, want = true) {
  try {
    deepStrictEqual(got, want);
    console.log(`ok ${name}`);
  } catch {
    failures += 1;
    console.log(`WRONG ${name}: got ${JSON.stringify(got)}, want ${JSON.stringify(want)}`);
  }
}

const compute = e2b({ timeout: 240_000 });
const sandbox = await compute.sandbox.create({ envs: { FROM_CREATE: "a b" }, metadata: { test: "computesdk ü" } });
try {
  let done = await sandbox.runCommand("echo out; echo err >&2; exit 3");
  check("command", [done.stdout, done.stderr, done.exitCode], ["out\n", "err\n", 3]);
  done = await sandbox.runCommand("python3 - <<'PY'\nprint(sum(range(10)), '\\u2028\\U0001f600')\nPY");
  check("program on standard input", done.stdout, "45 \u2028\u{1f600}\n");
  done = await sandbox.runCommand("pwd; echo $FROM_CREATE", { cwd: "/tmp" });
  check("working folder and environment", done.stdout, "/tmp\na b\n");
  done = await sandbox.runCommand("node -e 'console.log(process.env.FROM_CALL)'", { env: { FROM_CALL: "x y" } });
  check("environment of one command", done.stdout, "x y\n");
  await sandbox.runCommand("sh -c 'sleep 1; echo late > /tmp/late'", { background: true });
  done = await sandbox.runCommand("for i in 1 2 3 4 5 6 7 8; do test -e /tmp/late && break; sleep 0.5; done; cat /tmp/late");
  check("program in the background", done.stdout, "late\n");

  const files = sandbox.filesystem;
  await files.mkdir("/tmp/data/deep");
  await files.writeFile("/tmp/data/deep/a.txt", "tief \u2028 \u{1f600}\n".repeat(20000));
  check("file", await files.readFile("/tmp/data/deep/a.txt"), "tief \u2028 \u{1f600}\n".repeat(20000));
  await files.writeFile("/tmp/data/empty", "");
  check("empty file", await files.readFile("/tmp/data/empty"), "");
  check("folder", (await files.readdir("/tmp/data")).map((entry) => entry.name), ["deep", "empty"]);
  await files.remove("/tmp/data/deep");
  check("removed", [await files.exists("/tmp/data/deep"), await files.exists("/tmp/data/empty")], [false, true]);

  const again = await compute.sandbox.getById(sandbox.sandboxId);
  check("by id", (await again.runCommand("ls /tmp/data")).stdout, "empty\n");
  check("listed", (await compute.sandbox.list()).some((other) => other.sandboxId === sandbox.sandboxId));
  check("unknown id", await compute.sandbox.getById("sbdoesnotexist"), null);
} finally {
  await sandbox.destroy();
}
check("ended", await compute.sandbox.getById(sandbox.sandboxId), null);
process.exit(failures ? 1 : 0);
