#!/bin/sh
# Removes the file after -o, then runs the command: ccache, for a precompiled header. ccache asks the preprocessor what
# the headers are, and that reads the precompiled header which is there already. So two changes of a header that begin
# with the same precompiled header would get the same result, that of the first.
for argument; do
  [ "$before" = -o ] && rm -f "$argument"
  before=$argument
done
exec "$@"
