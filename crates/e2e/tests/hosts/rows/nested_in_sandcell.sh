# Inside a sandcell sandbox, where namespaces are denied.
# run: refused isolation_unavailable cause="user_namespace" says="sandcell"
. "$COMMON"
# What runs inside is the probe; what it leaves comes back as files.
program <<'P'
import os, subprocess
env = dict(os.environ, W='/home/user', BIN='/mnt/stage/sandcell', PROBE='/mnt/stage/probe.sh', SANDCELL_DATA_DIR='/tmp/data', WITH='')
open('print.py', 'w').write('print(1)')
subprocess.run(['sh', env['PROBE']], env=env)
P
outs=()
for command in run serve doctor; do for end in out err status; do outs+=(--out "/home/user/$command.$end:$W/$command.$end"); done; done
$AS "$BIN" run --mount "$STAGE:/mnt/stage:ro" "${outs[@]}" "$W/print.py"
