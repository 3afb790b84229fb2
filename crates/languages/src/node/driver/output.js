// Writes to pipes are made synchronous, as writes to files are. Otherwise a program that throws or exits loses
// buffered output.
for (const stream of [process.stdout, process.stderr]) stream._handle?.setBlocking?.(true);
