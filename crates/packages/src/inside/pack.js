// Runs inside the installer's sandbox: writes the files below a folder's node_modules to standard output, in the records that
// pack.py describes. Links (such as those of .bin) are left out.
const fs = require("fs"), path = require("path");
const root = process.argv[1];
let count = 0;
const write = (bytes) => {
  for (let done = 0; done < bytes.length; ) done += fs.writeSync(1, bytes, done);
};
const walk = (folder) => {
  for (const entry of fs.readdirSync(folder, { withFileTypes: true }).sort((a, b) => (a.name < b.name ? -1 : 1))) {
    const full = path.join(folder, entry.name);
    if (entry.isDirectory()) walk(full);
    else if (entry.isFile() && entry.name !== ".package-lock.json") {
      const found = fs.lstatSync(full), name = Buffer.from(path.relative(root, full)), head = Buffer.alloc(14);
      head.write("F");
      head.writeUInt32LE(name.length, 1);
      head.writeUInt8((found.mode >> 6) & 1, 5);
      head.writeBigUInt64LE(BigInt(found.size), 6);
      write(Buffer.concat([head, name]));
      const file = fs.openSync(full), part = Buffer.alloc(1 << 18);
      for (let left = found.size; left > 0; ) {
        const read = fs.readSync(file, part, 0, Math.min(left, part.length));
        if (read === 0) throw new Error("a file shrank while it was read");
        write(part.subarray(0, read));
        left -= read;
      }
      fs.closeSync(file);
      count += 1;
    }
  }
};
const modules = path.join(root, "node_modules");
if (fs.existsSync(modules)) walk(modules);
const end = Buffer.alloc(5);
end.write("E");
end.writeUInt32LE(count, 1);
write(end);
