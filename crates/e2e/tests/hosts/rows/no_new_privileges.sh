# The program cannot gain privileges, as under systemd's NoNewPrivileges.
# run: ok
. "$COMMON"
probe setpriv --no-new-privs
