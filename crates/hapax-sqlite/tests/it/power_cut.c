/* Preloaded into the process of the power cut test: writes every change of a file in
 * HAPAX_CUT_FOLDER, and every line on standard output, to the file HAPAX_CUT_LOG, in one order.
 * With HAPAX_CUT_LYING_DISK it does not write down that a file was synced.
 *
 * An entry: kind (1 byte), length of the path (2), offset (8), length of the data (8), path, data. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Held during the call and its entry, so that the order of entries is the order of calls. */
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static int log_file = -1;

static void put(const void *bytes, size_t count) {
    if (syscall(SYS_write, log_file, bytes, count) != (long)count) abort();
}

static void add_entry(char kind, const char *path, uint64_t offset, const void *data, uint64_t count) {
    if (log_file < 0) {
        log_file = syscall(SYS_openat, AT_FDCWD, getenv("HAPAX_CUT_LOG"), O_CREAT | O_WRONLY | O_APPEND, 0600);
        if (log_file < 0) abort();
    }
    uint16_t path_length = strlen(path);
    put(&kind, 1);
    put(&path_length, 2);
    put(&offset, 8);
    put(&count, 8);
    put(path, path_length);
    if (data) put(data, count);
}

/* Whether the file is one of the database, and its path. The shared memory is made anew after a
 * power cut. */
static int is_watched(int file, char path[4096]) {
    const char *folder = getenv("HAPAX_CUT_FOLDER");
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, 4095);
    if (!folder || length < 0) return 0;
    path[length] = 0;
    int is_shared_memory = length > 4 && !strcmp(path + length - 4, "-shm");
    return !strncmp(path, folder, strlen(folder)) && !is_shared_memory;
}

static ssize_t write_at(int file, const void *data, size_t count, off_t offset) {
    char path[4096];
    pthread_mutex_lock(&order);
    ssize_t written = syscall(SYS_pwrite64, file, data, count, offset);
    if (written > 0 && is_watched(file, path)) add_entry('w', path, offset, data, written);
    pthread_mutex_unlock(&order);
    return written;
}
ssize_t pwrite(int file, const void *data, size_t count, off_t offset) { return write_at(file, data, count, offset); }
ssize_t pwrite64(int file, const void *data, size_t count, off64_t offset) { return write_at(file, data, count, offset); }

ssize_t write(int file, const void *data, size_t count) {
    char path[4096];
    pthread_mutex_lock(&order);
    off_t offset = lseek(file, 0, SEEK_CUR);
    ssize_t written = syscall(SYS_write, file, data, count);
    if (written > 0 && file == 1) add_entry('o', "", 0, data, written);
    else if (written > 0 && is_watched(file, path)) add_entry('w', path, offset, data, written);
    pthread_mutex_unlock(&order);
    return written;
}

static int truncate_to(int file, off_t length) {
    char path[4096];
    pthread_mutex_lock(&order);
    int result = syscall(SYS_ftruncate, file, length);
    if (!result && is_watched(file, path)) add_entry('t', path, length, NULL, 0);
    pthread_mutex_unlock(&order);
    return result;
}
int ftruncate(int file, off_t length) { return truncate_to(file, length); }
int ftruncate64(int file, off64_t length) { return truncate_to(file, length); }

static int sync_file(long call, int file) {
    char path[4096];
    pthread_mutex_lock(&order);
    int result = syscall(call, file);
    if (!result && !getenv("HAPAX_CUT_LYING_DISK") && is_watched(file, path)) add_entry('s', path, 0, NULL, 0);
    pthread_mutex_unlock(&order);
    return result;
}
int fsync(int file) { return sync_file(SYS_fsync, file); }
int fdatasync(int file) { return sync_file(SYS_fdatasync, file); }

int unlink(const char *path) {
    pthread_mutex_lock(&order);
    int result = syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (!result) add_entry('u', path, 0, NULL, 0);
    pthread_mutex_unlock(&order);
    return result;
}
