# Outlives the test process that started it, and tidies up after it: a test
# process that is killed cannot end its servers itself.
root=$1

# Standard input is a pipe that nobody writes to: it ends with the test process.
cat >/dev/null

# Children first looked up, then killed together with their parent: the workers
# of a stopped PostgreSQL would stay stopped for ever.
for record in "$root"/pids/*; do
    parent=${record##*/}
    doomed=$parent
    for stat in /proc/[0-9]*/stat; do
        read -r line <"$stat" || continue
        case ${line##*) } in
        ?" $parent "*)
            child=${stat#/proc/}
            doomed="$doomed ${child%/stat}"
            ;;
        esac
    done 2>/dev/null
    # shellcheck disable=SC2086 # several numbers
    kill -KILL $doomed 2>/dev/null
done

# PostgreSQL's System V segment is not in the folder; line seven names "KEY ID".
for pid_file in "$root"/*/data/postmaster.pid; do
    # shellcheck disable=SC2046 # two words
    set -- $(sed -n 7p "$pid_file" 2>/dev/null)
    [ -z "$2" ] || ipcrm -m "$2" 2>/dev/null
done

# A server writes until its last moment, so the first attempt may leave a file.
rm -rf "$root" 2>/dev/null || {
    sleep 1
    rm -rf "$root"
}
