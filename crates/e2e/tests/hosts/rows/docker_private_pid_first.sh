# The program itself is the first process of the container.
# only: root
# run: ok
. "$COMMON"
[ -n "${SANDCELL_TEST_DOCKER_HOST:-}" ] || skip "no daemon: eval \"\$(.ci/docker)\""
# The probe runs the commands here, each in a new container.
export DOCKER_HOST=$SANDCELL_TEST_DOCKER_HOST
cat >"$W/run-in-container" <<S
#!/bin/sh
shift
exec docker run --rm -i --network none -v "$STAGE:$STAGE" -w "$W" -e HOME -e SANDCELL_DATA_DIR --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined sandcell/python "$BIN" "\$@"
S
chmod 755 "$W/run-in-container"
export WITH=$W/run-in-container
probe
! grep WARN "$W/serve.err"
