/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * A backing over a block device or a regular file.
 *
 * Ownership is flock(): it belongs to the open file description, so it survives the double fork of
 * a daemon (fcntl's POSIX locks would be lost there), needs no pid file, and disappears with the
 * last descriptor even after kill -9. Two paths to one file meet at the inode. What flock cannot
 * see is a loop device over the file; for block devices O_EXCL claims the device itself, against
 * mounts and other device nodes too. The pid in /proc/locks is that of the process which took the
 * lock and is gone after a daemon's fork, so the holder is looked up in /proc/PID/fdinfo
 * (lock-holder.c).
 *
 * O_DIRECT is used when statx() says that the alignment of blocks is good enough; a file system
 * that does not answer is tried with one read. Otherwise the page cache is used, and fdatasync()
 * is the flush in both cases.
 */
#include "backing/backing.h"

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backing/backing-internal.h"
#include "lib/hooks.h"

/*
 * A lock may be in the way for a moment that nobody is to blame for: a device manager takes a
 * shared one on a block device after an event, and the kernel ends the rings of a killed owner,
 * which hold its file open, a while after the process is gone.
 */
#define LOCK_TRIES	 40
#define LOCK_RETRY_US	 50000
#define LOCK_OWNED_TRIES 10

struct file_backing {
	struct cpc_backing backing;
	bool is_block;
	bool punch_holes;
	_Atomic bool no_discard; /* the device has said EOPNOTSUPP */
};

static struct file_backing *to_file(struct cpc_backing *b)
{
	return cpc_container_of(b, struct file_backing, backing);
}

/* ---- transfers ---- */

typedef ssize_t (*transfer_fn)(int fd, const struct iovec *iov, int nr, off_t offset);

/* Repeats `transfer` until the vector is done; returning 0 bytes is an error. */
static int transfer_all(struct cpc_backing *b, transfer_fn transfer, uint64_t bytenr,
			const struct iovec *iov, unsigned nr)
{
	struct iovec rest[CPC_BACKING_MAX_IOV];
	ssize_t n;

	for (;;) {
		n = transfer(b->fd, iov, (int)nr, (off_t)bytenr);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -EIO;
		bytenr += (uint64_t)n;
		nr = cpc_iov_tail(rest, iov, nr, (size_t)n);
		if (!nr)
			return 0;
		iov = rest;
	}
}

static int file_readv(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov, unsigned nr)
{
	return transfer_all(b, preadv, bytenr, iov, nr);
}

static int file_writev(struct cpc_backing *b, uint64_t bytenr, const struct iovec *iov, unsigned nr,
		       enum cpc_cause cause)
{
	return transfer_all(b, pwritev, bytenr, iov, nr);
}

static int file_flush(struct cpc_backing *b)
{
	int ret;

	do {
		ret = fdatasync(b->fd);
	} while (ret && errno == EINTR);
	return ret ? -errno : 0;
}

static int discard_once(struct file_backing *f, uint64_t bytenr, uint64_t len)
{
	uint64_t range[2] = {bytenr, len};
	int ret;

	if (f->is_block)
		ret = ioctl(f->backing.fd, BLKDISCARD, range);
	else
		ret = fallocate(f->backing.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				(off_t)bytenr, (off_t)len);
	return ret ? -errno : 0;
}

static int file_discard(struct cpc_backing *b, uint64_t bytenr, uint64_t len)
{
	struct file_backing *f = to_file(b);
	int ret;

	if ((!f->is_block && !f->punch_holes) || atomic_load(&f->no_discard))
		return 0;
	do {
		ret = discard_once(f, bytenr, len);
	} while (ret == -EINTR);
	if (ret != -EOPNOTSUPP)
		return ret;
	atomic_store(&f->no_discard, true);
	return 0;
}

static int fd_size(int fd, uint64_t *size)
{
	struct stat st;

	if (fstat(fd, &st))
		return -errno;
	if (S_ISBLK(st.st_mode))
		return ioctl(fd, BLKGETSIZE64, size) ? -errno : 0;
	*size = (uint64_t)st.st_size;
	return 0;
}

static int file_current_size(struct cpc_backing *b, uint64_t *size)
{
	return fd_size(b->fd, size);
}

static void file_close(struct cpc_backing *b)
{
	close(b->fd);
	cpc_free(to_file(b));
}

static const struct cpc_backing_ops file_ops = {
    .name = "file",
    .readv = file_readv,
    .writev = file_writev,
    .flush = file_flush,
    .discard = file_discard,
    .current_size = file_current_size,
    .close = file_close,
};

/* ---- opening ---- */

/* What open is about, for the error messages. */
struct opening {
	const char *path;
	bool read_only;
	bool is_block;
	char *err;
	size_t errlen;
};

__attribute__((format(printf, 3, 4))) static int fail(const struct opening *o, int ret,
						      const char *fmt, ...)
{
	size_t used;
	va_list ap;

	used = (size_t)snprintf(o->err, o->errlen, "%s: ", o->path);
	if (used >= o->errlen)
		return ret;
	va_start(ap, fmt);
	vsnprintf(o->err + used, o->errlen - used, fmt, ap);
	va_end(ap);
	return ret;
}

static int fail_errno(const struct opening *o, int ret, const char *what)
{
	return fail(o, ret, "%s: %s", what, strerror(-ret));
}

/* Refuses what is neither a block device nor a regular file before it is opened. */
static int check_kind(struct opening *o)
{
	struct stat st;

	if (stat(o->path, &st))
		return fail_errno(o, -errno, "cannot open the pool");
	o->is_block = S_ISBLK(st.st_mode);
	if (!o->is_block && !S_ISREG(st.st_mode))
		return fail(o, -EINVAL, "not a block device or a regular file");
	return 0;
}

/* The process that has our lock on a device which somebody claims, 0: none that we can see. */
static pid_t device_holder(const struct opening *o)
{
	int fd = open(o->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	pid_t pid = fd < 0 ? 0 : cpc_lock_holder(fd);

	if (fd >= 0)
		close(fd);
	return pid;
}

/* A claim on a device outlives its process as the lock does, see take_lock. */
static int open_fd(const struct opening *o)
{
	int flags = O_CLOEXEC | O_NONBLOCK | (o->read_only ? O_RDONLY : O_RDWR);
	int fd, tries = 0;
	pid_t pid;

	if (o->is_block && !o->read_only)
		flags |= O_EXCL;
	while ((fd = open(o->path, flags)) < 0) {
		if (errno != EBUSY)
			return fail_errno(o, -errno, "cannot open the pool");
		pid = device_holder(o);
		if (pid > 0)
			return fail(o, -EBUSY, "already in use, held by process %ld", (long)pid);
		if (++tries >= LOCK_TRIES)
			return fail(o, -EBUSY, "in use (mounted, or opened by another program)");
		usleep(LOCK_RETRY_US);
	}
	return fd;
}

/* The path may have been swapped between stat and open. */
static int check_kind_again(struct opening *o, int fd)
{
	struct stat st;

	if (fstat(fd, &st))
		return fail_errno(o, -errno, "fstat");
	if (S_ISBLK(st.st_mode) != o->is_block || (!o->is_block && !S_ISREG(st.st_mode)))
		return fail(o, -EINVAL, "changed while it was being opened");
	return 0;
}

static int refuse_owner(const struct opening *o, int fd)
{
	const char *what = o->read_only ? "cannot be read beside its owner" : "already in use";
	pid_t pid = cpc_lock_holder(fd);

	if (pid > 0)
		return fail(o, -EBUSY, "%s, held by process %ld", what, (long)pid);
	return fail(o, -EBUSY, "%s, held by another process", what);
}

static int take_lock(const struct opening *o, int fd)
{
	int tries = 0;

	while (flock(fd, (o->read_only ? LOCK_SH : LOCK_EX) | LOCK_NB)) {
		if (errno == EINTR)
			continue;
		if (errno != EWOULDBLOCK)
			return fail_errno(o, -errno, "cannot lock");
		tries++;
		if (tries >= (o->is_block ? LOCK_OWNED_TRIES : 1) &&
		    (tries >= LOCK_TRIES || cpc_lock_holder(fd) > 0))
			return refuse_owner(o, fd);
		usleep(LOCK_RETRY_US);
	}
	return 0;
}

static int check_size(const struct opening *o, int fd, uint64_t *size)
{
	int ret = fd_size(fd, size);

	if (ret)
		return fail_errno(o, ret, "cannot get the size");
	*size = cpc_align_down(*size, CPC_BLOCK_SIZE);
	if (!*size)
		return fail(o, -EINVAL, "smaller than one block");
	if (*size > INT64_MAX)
		return fail(o, -EFBIG, "too large");
	return 0;
}

/* ---- O_DIRECT ---- */

/* Return: 1 yes, 0 no, -1 the kernel does not say. */
static int direct_by_statx(int fd)
{
#ifdef STATX_DIOALIGN
	struct statx stx;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) || !(stx.stx_mask & STATX_DIOALIGN))
		return -1;
	return stx.stx_dio_offset_align && stx.stx_dio_offset_align <= CPC_BLOCK_SIZE &&
	       stx.stx_dio_mem_align <= CPC_BLOCK_SIZE;
#else
	return -1;
#endif
}

static int set_direct(int fd, bool on)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0)
		return -errno;
	flags = on ? flags | O_DIRECT : flags & ~O_DIRECT;
	return fcntl(fd, F_SETFL, flags) ? -errno : 0;
}

/* Reads the first block; what is there does not matter. */
static bool direct_read_works(int fd)
{
	void *buf = cpc_alloc_aligned(CPC_BLOCK_SIZE, CPC_BLOCK_SIZE);
	ssize_t n = buf ? pread(fd, buf, CPC_BLOCK_SIZE, 0) : -1;

	cpc_free(buf);
	return n == CPC_BLOCK_SIZE;
}

static bool try_direct(int fd)
{
	int known = direct_by_statx(fd);

	if (known == 0 || set_direct(fd, true))
		return false;
	if (known == 1 || direct_read_works(fd))
		return true;
	set_direct(fd, false);
	return false;
}

static int choose_direct(const struct opening *o, int fd, enum cpc_direct direct, bool *on)
{
	*on = direct != CPC_DIRECT_OFF && try_direct(fd);
	if (direct == CPC_DIRECT_ON && !*on)
		return fail(o, -EINVAL, "direct I/O is not possible here (use direct=auto)");
	return 0;
}

static int make_backing(const struct opening *o, int fd, uint64_t size, unsigned flags,
			struct file_backing **out)
{
	struct file_backing *f = cpc_zalloc(sizeof(*f));

	if (!f)
		return fail_errno(o, -ENOMEM, "open");
	cpc_backing_init(&f->backing, &file_ops, size, fd, o->read_only);
	f->is_block = o->is_block;
	f->punch_holes = flags & CPC_BACKING_SPARSE;
	*out = f;
	return 0;
}

int cpc_backing_open_file(const char *path, unsigned flags, enum cpc_direct direct,
			  struct cpc_backing **b, char *err, size_t errlen)
{
	struct opening o = {path, flags & CPC_BACKING_READONLY, false, err, errlen};
	struct file_backing *f = NULL;
	uint64_t size = 0;
	bool on = false;
	int fd, ret;

	ret = check_kind(&o);
	if (ret)
		return ret;
	fd = open_fd(&o);
	if (fd < 0)
		return fd;
	ret = check_kind_again(&o, fd);
	if (!ret)
		ret = take_lock(&o, fd);
	if (!ret)
		ret = check_size(&o, fd, &size);
	if (!ret)
		ret = choose_direct(&o, fd, direct, &on);
	if (!ret)
		ret = make_backing(&o, fd, size, flags, &f);
	if (ret) {
		close(fd);
		return ret;
	}
	f->backing.direct = on;
	*b = &f->backing;
	return 0;
}

/* ---- creating ---- */

static int sync_parent(const char *path)
{
	char copy[PATH_MAX];
	int fd, ret;

	if (strlen(path) >= sizeof(copy))
		return -ENAMETOOLONG;
	strcpy(copy, path);
	fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ret = fsync(fd) ? -errno : 0;
	close(fd);
	return ret == -EINVAL ? 0 : ret; /* some file systems cannot sync a directory */
}

/* A null length would be an error of posix_fallocate; size is at least a block. */
static int size_file(int fd, uint64_t size, bool sparse)
{
	int ret;

	if (ftruncate(fd, (off_t)size))
		return -errno;
	do {
		ret = sparse ? 0 : posix_fallocate(fd, 0, (off_t)size);
	} while (ret == EINTR);
	if (ret)
		return -ret;
	return fsync(fd) ? -errno : 0;
}

int cpc_backing_create_file(const char *path, uint64_t size, bool sparse, char *err, size_t errlen)
{
	struct opening o = {path, false, false, err, errlen};
	int fd, ret;

	if (!size || size % CPC_BLOCK_SIZE || size > INT64_MAX)
		return fail(&o, -EINVAL, "the size is not a multiple of 4096 bytes");
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return fail_errno(&o, -errno, "cannot create the file");
	ret = take_lock(&o, fd);
	if (ret)
		goto out; /* somebody opened it in this instant: it is theirs */
	ret = size_file(fd, size, sparse);
	if (!ret)
		ret = sync_parent(path);
	if (ret) {
		fail_errno(&o, ret, "cannot allocate the file");
		unlink(path);
	}
out:
	close(fd);
	return ret;
}
