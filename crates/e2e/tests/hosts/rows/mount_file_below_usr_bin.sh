# One file is mounted over another, as GPU runtimes do with their programs.
# run: ok
. "$COMMON"
mount --bind /usr/bin/true /usr/bin/yes
program <<'P'
import subprocess
print(subprocess.run(['/usr/bin/yes'], capture_output=True).stdout.count(b'y') + 1)
P
probe
