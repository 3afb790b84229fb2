# A filter answers ENOSYS to clone3, as Docker's does: clone is taken.
# run: ok
. "$COMMON"
probe $without ENOSYS clone3 --
