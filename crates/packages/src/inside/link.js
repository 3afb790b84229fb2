// Runs in the sandbox that packages are for, with the rights of its code: makes each package of a layer known where require
// and import look from the home folder on, and its programs in `.bin` there. What the caller put there himself stays.
const fs = require("fs"), path = require("path");
const from = path.join(process.argv[1], "node_modules"), to = path.join(process.env.HOME, "node_modules");
const put = (at, target) => {
  const found = fs.lstatSync(at, { throwIfNoEntry: false });
  if (found && !found.isSymbolicLink()) return false;
  fs.mkdirSync(path.dirname(at), { recursive: true });
  fs.rmSync(at + ".new", { force: true });
  fs.symlinkSync(target, at + ".new");
  fs.renameSync(at + ".new", at);
  return true;
};
const programs = (name) => {
  try {
    const { bin } = JSON.parse(fs.readFileSync(path.join(from, name, "package.json"), "utf8"));
    return Object.entries(typeof bin === "string" ? { [name]: bin } : bin || {});
  } catch {
    return []; // a package without a description has no programs
  }
};
const link = (name) => {
  if (!put(path.join(to, name), path.join(from, name))) return console.log(name);
  for (const [program, file] of programs(name)) {
    const target = path.join(from, name, String(file));
    if (target.startsWith(from) && fs.existsSync(target)) put(path.join(to, ".bin", path.basename(program)), target);
  }
};
for (const name of fs.readdirSync(from)) {
  if (name.startsWith("@")) for (const inner of fs.readdirSync(path.join(from, name))) link(path.join(name, inner));
  else if (!name.startsWith(".")) link(name);
}
