// Pipes are written to at once and whole, as files are: else a program that throws or exits loses what is not taken yet.
for (const stream of [process.stdout, process.stderr]) stream._handle?.setBlocking?.(true);
