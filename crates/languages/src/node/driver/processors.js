// The affinity mask lists all CPUs of the machine; `cpus` has those of the sandbox.
{
  const os = require("os"), allowed = os.availableParallelism;
  if (allowed) os.availableParallelism = () => Math.min(allowed(), os.cpus().length || 1);
  require("module").syncBuiltinESMExports();
}
