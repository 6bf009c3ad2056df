# Ends the servers of the test process that started this script, and removes
# their folders: a test process that is killed cannot do that itself.
root=$1

# Standard input is a pipe without data that closes with the test process.
cat >/dev/null

# Look up the children first and kill them together with their parent: the
# workers of a paused PostgreSQL would stay paused.
for pid_file in "$root"/pids/*; do
    parent=${pid_file##*/}
    victims=$parent
    for stat in /proc/[0-9]*/stat; do
        read -r line <"$stat" || continue
        case ${line##*) } in
        ?" $parent "*)
            child=${stat#/proc/}
            victims="$victims ${child%/stat}"
            ;;
        esac
    done 2>/dev/null
    # shellcheck disable=SC2086 # several numbers
    kill -KILL $victims 2>/dev/null
done

# PostgreSQL's System V segment is outside the folder; line seven is "KEY ID".
for pid_file in "$root"/*/data/postmaster.pid; do
    # shellcheck disable=SC2046 # two words
    set -- $(sed -n 7p "$pid_file" 2>/dev/null)
    [ -z "$2" ] || ipcrm -m "$2" 2>/dev/null
done

# A dying server may still write a file after the first attempt.
rm -rf "$root" 2>/dev/null || {
    sleep 1
    rm -rf "$root"
}
