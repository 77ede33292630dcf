/* Faults of the machine under a real node: loaded into its process before the C library (LD_PRELOAD), told what to do by a file in
   shared memory whose name is in FAULTS. faults.py has the same fields, and says what each does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct faults {
  int64_t ahead_s;
  int32_t read_errno, write_errno, open_ms, flip_every;
  int64_t failed, delayed, received, flipped;
};

#define MOST_FILES 65536
#define ADD(counter) __atomic_add_fetch(&faults->counter, 1, __ATOMIC_RELAXED)
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static volatile struct faults *faults;
static char is_kv[MOST_FILES];

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("FAULTS");
  int file = path ? REAL(open)(path, O_RDWR | O_CLOEXEC) : -1;
  void *found = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct faults), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (found != MAP_FAILED) faults = found;
}

/* --- the wall clock ------------------------------------------------------------------------------------------------- */

static int64_t ahead(clockid_t clock) {
  return faults && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) ? faults->ahead_s : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = REAL(clock_gettime)(clock, now);
  if (!failed) now->tv_sec += ahead(clock);
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  int failed = REAL(gettimeofday)(now, zone);
  if (!failed) now->tv_sec += ahead(CLOCK_REALTIME);
  return failed;
}

time_t time(time_t *now) {
  time_t found = REAL(time)(NULL) + ahead(CLOCK_REALTIME);
  if (now) *now = found;
  return found;
}

/* A wait until a moment of the wall clock: the kernel's own clock does not jump. */
static const struct timespec *real_moment(const struct timespec *until, struct timespec *moment) {
  if (!until || !faults || !faults->ahead_s || until->tv_sec < 100000000) return until; /* a monotonic clock is far below */
  *moment = *until;
  moment->tv_sec -= faults->ahead_s;
  if (moment->tv_sec < 0) moment->tv_sec = 0;
  return moment;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
  static int (*wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  struct timespec moment;
  if (!wait) wait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
  if (!wait) wait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  return wait(cond, mutex, real_moment(until, &moment));
}

long syscall(long number, ...) {
  va_list list;
  long given[6];
  struct timespec moment;
  va_start(list, number);
  for (int k = 0; k < 6; k++) given[k] = va_arg(list, long);
  va_end(list);
  if (number == SYS_futex && (given[1] & FUTEX_CLOCK_REALTIME))
    given[3] = (long)real_moment((const struct timespec *)given[3], &moment);
  return REAL(syscall)(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

/* --- the disk, of files of KV ---------------------------------------------------------------------------------------- */

static int opened(int file, const char *path) {
  if (file < 0 || file >= MOST_FILES) return file;
  is_kv[file] = strstr(path, "/kv/") && (strstr(path, ".safetensors") || strstr(path, ".part"));
  if (faults && is_kv[file] && faults->open_ms) {
    ADD(delayed);
    usleep(faults->open_ms * 1000);
  }
  return file;
}

static int fails(int file, int32_t error) {
  if (!error || file < 0 || file >= MOST_FILES || !is_kv[file]) return 0;
  ADD(failed);
  errno = error;
  return 1;
}

int open(const char *path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
  va_end(list);
  return opened(REAL(open)(path, flags, mode), path);
}

int open64(const char *path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
  va_end(list);
  return opened(REAL(open64)(path, flags, mode), path);
}

int close(int file) {
  if (file >= 0 && file < MOST_FILES) is_kv[file] = 0;
  return REAL(close)(file);
}

ssize_t read(int file, void *data, size_t size) {
  return faults && fails(file, faults->read_errno) ? -1 : REAL(read)(file, data, size);
}

ssize_t write(int file, const void *data, size_t size) {
  return faults && fails(file, faults->write_errno) ? -1 : REAL(write)(file, data, size);
}

/* --- the wire, of gRPC: Python's sockets receive by other calls ------------------------------------------------------ */

ssize_t recvmsg(int file, struct msghdr *message, int flags) {
  ssize_t size = REAL(recvmsg)(file, message, flags);
  if (!faults || size < 64) return size;
  int64_t count = ADD(received);
  if (!faults->flip_every || count % faults->flip_every) return size;
  size_t at = (size_t)size / 2;
  for (size_t k = 0; k < message->msg_iovlen; at -= message->msg_iov[k++].iov_len)
    if (at < message->msg_iov[k].iov_len) {
      ((char *)message->msg_iov[k].iov_base)[at] ^= 1 << (count % 8);
      ADD(flipped);
      break;
    }
  return size;
}
