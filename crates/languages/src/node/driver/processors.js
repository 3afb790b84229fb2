// The kernel tells on which processors a program may run, which are all of the machine's; `cpus` knows how many are the sandbox's.
{
  const os = require("os"), allowed = os.availableParallelism;
  if (allowed) os.availableParallelism = () => Math.min(allowed(), os.cpus().length || 1);
  require("module").syncBuiltinESMExports();
}
