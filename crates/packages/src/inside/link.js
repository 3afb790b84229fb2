// Runs in the sandbox that packages are for, with the rights of its code: makes each package of a layer known where require
// and import look from the home folder on. What the caller put there himself stays.
const fs = require("fs"), path = require("path");
const from = path.join(process.argv[1], "node_modules"), to = path.join(process.env.HOME, "node_modules");
const link = (name) => {
  const at = path.join(to, name), found = fs.lstatSync(at, { throwIfNoEntry: false });
  if (found && !found.isSymbolicLink()) return console.log(name);
  fs.mkdirSync(path.dirname(at), { recursive: true });
  fs.rmSync(at + ".new", { force: true });
  fs.symlinkSync(path.join(from, name), at + ".new");
  fs.renameSync(at + ".new", at);
};
for (const name of fs.readdirSync(from)) {
  if (name.startsWith("@")) for (const inner of fs.readdirSync(path.join(from, name))) link(path.join(name, inner));
  else if (!name.startsWith(".")) link(name);
}
