# A filter answers ENOSYS to clone3, as Docker's does: clone is taken.
# run: ok
# open: clone is not taken
. "$COMMON"
probe $without ENOSYS clone3 --
