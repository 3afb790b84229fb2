# What NVIDIA's container runtime mounts: libraries and programs as single files, read-only.
# run: ok
. "$COMMON"
view /usr
mount --bind "$root" /usr
lib=$(dirname "$(find /usr/lib -name 'libc.so.6' | head -1)")
for file in "$lib/libcuda.so.1" "$lib/libnvidia-ml.so.1" /usr/bin/nvidia-smi; do
  touch "$file"
  mount --bind /usr/bin/true "$file"
  mount -o remount,ro,bind "$file"
done
program <<'P'
import subprocess
print(subprocess.run(['/usr/bin/nvidia-smi']).returncode + 1)
P
probe
