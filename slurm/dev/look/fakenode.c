/* A preload library that lets processes be placed on CPUs and NUMA nodes which this machine lacks.
 *
 * It answers the calls by which programs ask the kernel for CPU affinity and memory policy, out of the node that
 * fake_tree.py writes: the same recording stands behind /sys and behind these answers. Nothing is really bound.
 *
 * The kernel itself keeps which thread is placed where: a place is a line of a table that all processes of the node
 * map, and a thread's timer slack holds its number (in nanoseconds above FIRST_SLACK, which changes nothing that a
 * program notices). So places are inherited by fork, clone and exec, one a thread, as real ones are, whatever becomes
 * of the environment.
 *
 * FAKENODE_TABLE     file of the table
 * FAKENODE_CPUS      CPUs of the node, `0-191`
 * FAKENODE_CPUSET    those that this job may use; all by default
 * FAKENODE_MEMS      NUMA nodes that this job may take memory from
 * FAKENODE_MEM_MIB   memory of the node
 * FAKENODE_DENY      `mempolicy`, `affinity` or both: these calls fail with EPERM, as in a strict container
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define IDS 1024
#define PLACES 4096
#define FIRST_SLACK 60000UL
#define STATUS_BYTES 16384

enum { DEFAULT_POLICY, PREFERRED, BIND, INTERLEAVE, LOCAL, PREFERRED_MANY, WEIGHTED_INTERLEAVE, POLICIES };
#define POLICY_FLAGS (7 << 13)
#define QUERY_NODE 1
#define QUERY_ADDRESS 2
#define QUERY_ALLOWED 4

typedef struct {
  unsigned char bits[IDS / 8];
} Set;

typedef struct {
  Set cpus;
  Set nodes;
  int policy;
  int used;
} Place;

static Set online, cpuset, mems;
static int cpu_limit;
static Place *table;
static int table_fd = -1;

/* ---------------------------------------------------------------- sets */

static int has(const Set *set, int id) { return set->bits[id / 8] >> id % 8 & 1; }

static void add(Set *set, int id) { set->bits[id / 8] |= (unsigned char)(1 << id % 8); }

static int size(const Set *set) {
  int count = 0;
  for (int id = 0; id < IDS; id++) count += has(set, id);
  return count;
}

static Set both(const Set *a, const Set *b) {
  Set common;
  for (int i = 0; i < IDS / 8; i++) common.bits[i] = a->bits[i] & b->bits[i];
  return common;
}

/* `0-3,8`; what isn't there leaves the set empty. */
static Set parse(const char *text) {
  Set set = {{0}};
  while (text && *text) {
    char *end;
    long first = strtol(text, &end, 10), last = first;
    if (end == text) break;
    if (*end == '-') last = strtol(end + 1, &end, 10);
    for (long id = first; id <= last && id < IDS; id++) add(&set, (int)id);
    text = *end == ',' ? end + 1 : end;
  }
  return set;
}

static Set from_memory(const void *bytes, size_t count) {
  Set set = {{0}};
  if (bytes) memcpy(set.bits, bytes, count < sizeof set.bits ? count : sizeof set.bits);
  return set;
}

static void to_memory(const Set *set, void *bytes, size_t count) {
  memset(bytes, 0, count);
  memcpy(bytes, set->bits, count < sizeof set->bits ? count : sizeof set->bits);
}

/* ---------------------------------------------------------------- the table of places */

static int denies(const char *what) {
  const char *denied = getenv("FAKENODE_DENY");
  return denied && strstr(denied, what) != NULL;
}

static void read_settings(void) {
  const char *path = getenv("FAKENODE_TABLE"), *allowed = getenv("FAKENODE_CPUSET");
  online = parse(getenv("FAKENODE_CPUS"));
  if (!size(&online)) add(&online, 0);
  cpuset = parse(allowed);
  cpuset = both(&cpuset, &online);
  if (!size(&cpuset)) cpuset = online;
  mems = parse(getenv("FAKENODE_MEMS"));
  if (!size(&mems)) add(&mems, 0);
  for (int id = 0; id < IDS; id++)
    if (has(&online, id)) cpu_limit = id + 1;
  table_fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
  if (table_fd < 0 || ftruncate(table_fd, sizeof(Place) * PLACES)) return;
  void *mapped = mmap(NULL, sizeof(Place) * PLACES, PROT_READ | PROT_WRITE, MAP_SHARED, table_fd, 0);
  table = mapped == MAP_FAILED ? NULL : mapped;
}

/* libnuma asks while it is loaded, which is before this library's own start: so whoever comes first reads them. */
__attribute__((constructor)) static void ready(void) {
  static int done;
  if (done) return;
  done = 1;
  read_settings();
}

static int find(const Place *place) {
  for (int i = 0; table && i < PLACES && table[i].used; i++)
    if (table[i].policy == place->policy && !memcmp(&table[i].cpus, &place->cpus, sizeof(Set)) &&
        !memcmp(&table[i].nodes, &place->nodes, sizeof(Set)))
      return i;
  return -1;
}

/* The line of a place, added if nobody had it before; -1 when there is no room. */
static int line_of(const Place *place) {
  int line = find(place);
  if (line >= 0 || !table) return line;
  flock(table_fd, LOCK_EX);
  line = find(place);
  for (int i = 0; line < 0 && i < PLACES; i++)
    if (!table[i].used) {
      table[i] = *place;
      __sync_synchronize();
      table[i].used = 1;
      line = i;
    }
  flock(table_fd, LOCK_UN);
  return line;
}

static int is_own(pid_t pid) { return pid == 0 || pid == (pid_t)syscall(SYS_gettid); }

static unsigned long slack_of(pid_t pid, int *gone) {
  char path[64], text[32] = "";
  *gone = 0;
  if (is_own(pid)) return (unsigned long)prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
  snprintf(path, sizeof path, "/proc/%d/timerslack_ns", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || read(fd, text, sizeof text - 1) <= 0) *gone = 1;
  if (fd >= 0) close(fd);
  return strtoul(text, NULL, 10);
}

static int set_slack(pid_t pid, unsigned long slack) {
  char path[64];
  if (is_own(pid)) return prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0);
  snprintf(path, sizeof path, "/proc/%d/timerslack_ns", pid);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  int failed = fd < 0 || dprintf(fd, "%lu", slack) < 0;
  if (fd >= 0) close(fd);
  if (failed) errno = ESRCH;
  return failed ? -1 : 0;
}

/* 0, or -1 with errno when there is no such thread. */
static int place_of(pid_t pid, Place *place) {
  int gone;
  ready();
  unsigned long line = slack_of(pid, &gone) - FIRST_SLACK;
  if (gone) {
    errno = ESRCH;
    return -1;
  }
  memset(place, 0, sizeof *place);
  place->cpus = cpuset;
  if (table && line < PLACES && table[line].used) {
    *place = table[line];
    place->cpus = both(&place->cpus, &cpuset);
    if (!size(&place->cpus)) place->cpus = cpuset;
  }
  place->used = 0;
  return 0;
}

static int move(pid_t pid, const Place *place) {
  int line = line_of(place);
  if (line < 0) {
    errno = ENOMEM;
    return -1;
  }
  return set_slack(pid, FIRST_SLACK + (unsigned long)line);
}

/* ---------------------------------------------------------------- affinity */

static int set_affinity(pid_t pid, size_t bytes, const void *mask) {
  Set wanted = from_memory(mask, bytes);
  Place place;
  if (denies("affinity")) {
    errno = EPERM;
    return -1;
  }
  ready();
  wanted = both(&wanted, &cpuset);
  if (!size(&wanted)) {
    errno = EINVAL;
    return -1;
  }
  if (place_of(pid, &place)) return -1;
  place.cpus = wanted;
  return move(pid, &place);
}

/* As the kernel: a set that can't hold every CPU is refused. */
static int get_affinity(pid_t pid, size_t bytes, void *mask) {
  Place place;
  ready();
  if (bytes * 8 < (size_t)cpu_limit) {
    errno = EINVAL;
    return -1;
  }
  if (place_of(pid, &place)) return -1;
  to_memory(&place.cpus, mask, bytes);
  return 0;
}

int sched_setaffinity(pid_t pid, size_t bytes, const cpu_set_t *mask) { return set_affinity(pid, bytes, mask); }

int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *mask) { return get_affinity(pid, bytes, mask); }

/* The C library doesn't tell which thread of the kernel another pthread is. */
int pthread_setaffinity_np(pthread_t thread, size_t bytes, const cpu_set_t *mask) {
  if (!pthread_equal(thread, pthread_self())) return ENOSYS;
  return set_affinity(0, bytes, mask) ? errno : 0;
}

int pthread_getaffinity_np(pthread_t thread, size_t bytes, cpu_set_t *mask) {
  if (!pthread_equal(thread, pthread_self())) return ENOSYS;
  return get_affinity(0, bytes, mask) ? errno : 0;
}

int sched_getcpu(void) {
  Place place;
  if (place_of(0, &place)) return -1;
  for (int id = 0; id < IDS; id++)
    if (has(&place.cpus, id)) return id;
  return -1;
}

/* ---------------------------------------------------------------- size of the machine */

int get_nprocs(void) {
  ready();
  return size(&online);
}

int get_nprocs_conf(void) { return get_nprocs(); }

long sysconf(int name) {
  static long (*real)(int);
  const char *mib = getenv("FAKENODE_MEM_MIB");
  if (!real) real = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
  if (name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF) return get_nprocs();
  if (name == _SC_PHYS_PAGES && mib) return atol(mib) * ((1L << 20) / real(_SC_PAGESIZE));
  return real(name);
}

/* ---------------------------------------------------------------- memory policy */

/* The kernel takes one bit less than it is told. */
static Set nodes_in(const void *mask, unsigned long bits) {
  Set nodes = {{0}};
  for (unsigned long id = 0; mask && id + 1 < bits && id < IDS; id++)
    if (((const unsigned char *)mask)[id / 8] >> id % 8 & 1) add(&nodes, (int)id);
  return nodes;
}

/* What the kernel would make of a policy in `place`; 0 or an error number. */
static int judge_policy(int mode, const void *mask, unsigned long bits, Place *place) {
  int policy = mode & ~POLICY_FLAGS;
  ready();
  Set asked = nodes_in(mask, bits), granted = both(&asked, &mems);
  if (denies("mempolicy")) return EPERM;
  if (policy < 0 || policy >= POLICIES) return EINVAL;
  int takes_none = policy == DEFAULT_POLICY || policy == LOCAL;
  if (takes_none && size(&asked)) return EINVAL;
  if (!takes_none && policy != PREFERRED && !size(&granted)) return EINVAL;
  if (policy == PREFERRED && size(&asked) && !size(&granted)) return EINVAL;
  place->policy = policy == PREFERRED && !size(&asked) ? LOCAL : policy;
  place->nodes = granted;
  return 0;
}

static long set_policy(int mode, const void *mask, unsigned long bits) {
  Place place;
  if (place_of(0, &place)) return -1;
  int error = judge_policy(mode, mask, bits, &place);
  if (error) {
    errno = error;
    return -1;
  }
  return move(0, &place);
}

/* Ranges of memory are accepted and not kept. */
static long bind_range(int mode, const void *mask, unsigned long bits) {
  Place ignored;
  int error = judge_policy(mode, mask, bits, &ignored);
  if (error) errno = error;
  return error ? -1 : 0;
}

static int first(const Set *set) {
  for (int id = 0; id < IDS; id++)
    if (has(set, id)) return id;
  return 0;
}

static long get_policy(int *mode, void *mask, unsigned long bits, unsigned long flags) {
  Place place;
  if (denies("mempolicy")) {
    errno = EPERM;
    return -1;
  }
  if (place_of(0, &place)) return -1;
  const Set *nodes = flags & QUERY_ALLOWED ? &mems : &place.nodes;
  if (mode) *mode = flags & QUERY_NODE ? first(nodes) : flags & QUERY_ALLOWED ? 0 : place.policy;
  if (mask) to_memory(nodes, mask, (bits + 63) / 64 * 8);
  return 0;
}

long syscall(long number, ...) {
  static long (*real)(long, ...);
  long a[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
  va_end(list);
  switch (number) {
  case SYS_sched_setaffinity:
    return set_affinity((pid_t)a[0], (size_t)a[1], (const void *)a[2]);
  case SYS_sched_getaffinity:
    if (get_affinity((pid_t)a[0], (size_t)a[1], (void *)a[2])) return -1;
    return (cpu_limit + 63) / 64 * 8;
  case SYS_set_mempolicy:
    return set_policy((int)a[0], (const void *)a[1], (unsigned long)a[2]);
  case SYS_get_mempolicy:
    return get_policy((int *)a[0], (void *)a[1], (unsigned long)a[2], (unsigned long)a[4]);
  case SYS_mbind:
    return bind_range((int)a[2], (const void *)a[3], (unsigned long)a[4]);
  case SYS_migrate_pages:
    return 0;
  }
  if (!real) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* ---------------------------------------------------------------- /proc/PID/status, /proc/PID/numa_maps */

static int write_mask(char *out, const Set *set, int limit) {
  int length = 0;
  for (int word = (limit + 31) / 32 - 1; word >= 0; word--) {
    unsigned bits = 0;
    for (int i = 0; i < 32; i++) bits |= (unsigned)has(set, word * 32 + i) << i;
    length += sprintf(out + length, "%08x%s", bits, word ? "," : "\n");
  }
  return length;
}

static int write_list(char *out, const Set *set) {
  int length = 0;
  for (int id = 0; id < IDS; id++) {
    if (!has(set, id) || (id && has(set, id - 1))) continue;
    int last = id;
    while (last + 1 < IDS && has(set, last + 1)) last++;
    length += sprintf(out + length, last > id ? "%s%d-%d" : "%s%d", length ? "," : "", id, last);
  }
  return length + sprintf(out + length, "\n");
}

/* The kernel's own text with our CPUs and nodes in it, as an open file. */
static int status_file(const char *path, pid_t pid) {
  static int (*real)(const char *, int, ...);
  char text[STATUS_BYTES], out[2 * STATUS_BYTES], *rest = text, *line;
  Place place;
  int length = 0;
  if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
  int fd = real(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return fd;
  ssize_t count = read(fd, text, sizeof text - 1);
  close(fd);
  text[count > 0 ? count : 0] = 0;
  if (place_of(pid, &place)) return -1;
  while ((line = strsep(&rest, "\n")) && (*line || rest)) {
    if (!strncmp(line, "Cpus_allowed:", 13))
      length += sprintf(out + length, "Cpus_allowed:\t"), length += write_mask(out + length, &place.cpus, cpu_limit);
    else if (!strncmp(line, "Cpus_allowed_list:", 18))
      length += sprintf(out + length, "Cpus_allowed_list:\t"), length += write_list(out + length, &place.cpus);
    else if (!strncmp(line, "Mems_allowed:", 13))
      length += sprintf(out + length, "Mems_allowed:\t"), length += write_mask(out + length, &mems, IDS);
    else if (!strncmp(line, "Mems_allowed_list:", 18))
      length += sprintf(out + length, "Mems_allowed_list:\t"), length += write_list(out + length, &mems);
    else
      length += sprintf(out + length, "%s\n", line);
  }
  fd = memfd_create("status", MFD_CLOEXEC);
  if (fd < 0 || write(fd, out, (size_t)length) != length) return -1;
  lseek(fd, 0, SEEK_SET);
  return fd;
}

/* Whether `path` is NAME of some process or thread, and of which. */
static int names(const char *path, const char *name, pid_t *pid) {
  const char *slash = path ? strrchr(path, '/') : NULL, *owner = slash;
  if (!slash || strcmp(slash + 1, name) || strncmp(path, "/proc/", 6)) return 0;
  while (owner > path && owner[-1] != '/') owner--;
  if (!strncmp(owner, "self/", 5))
    *pid = getpid();
  else if (!strncmp(owner, "thread-self/", 12))
    *pid = 0;
  else if ((*pid = (pid_t)strtol(owner, NULL, 10)) <= 0)
    return 0;
  return 1;
}

/* -2: none of ours. Where pages really are has nothing to do with the fake: better no answer. */
static int open_ours(const char *path) {
  pid_t pid;
  if (names(path, "status", &pid)) return status_file(path, pid);
  if (!names(path, "numa_maps", &pid)) return -2;
  errno = ENOENT;
  return -1;
}

#define OPEN(NAME)                                                                       \
  int NAME(const char *path, int flags, ...) {                                           \
    static int (*real)(const char *, int, ...);                                          \
    va_list list;                                                                        \
    va_start(list, flags);                                                               \
    mode_t mode = va_arg(list, mode_t);                                                  \
    va_end(list);                                                                        \
    int ours = open_ours(path);                                                          \
    if (!real) real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #NAME);          \
    return ours == -2 ? real(path, flags, mode) : ours;                                  \
  }

#define OPENAT(NAME)                                                                     \
  int NAME(int folder, const char *path, int flags, ...) {                               \
    static int (*real)(int, const char *, int, ...);                                     \
    va_list list;                                                                        \
    va_start(list, flags);                                                               \
    mode_t mode = va_arg(list, mode_t);                                                  \
    va_end(list);                                                                        \
    int ours = open_ours(path);                                                          \
    if (!real) real = (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, #NAME);     \
    return ours == -2 ? real(folder, path, flags, mode) : ours;                          \
  }

#define FOPEN(NAME)                                                                      \
  FILE *NAME(const char *path, const char *mode) {                                       \
    static FILE *(*real)(const char *, const char *);                                    \
    int ours = open_ours(path);                                                          \
    if (!real) real = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, #NAME);  \
    return ours == -2 ? real(path, mode) : ours < 0 ? NULL : fdopen(ours, "r");          \
  }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)
