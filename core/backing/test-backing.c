/* SPDX-License-Identifier: BSD-3-Clause */
/* Files and block devices: transfers, queues, ownership, sizes. */
#include "backing/test-util.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backing/flush-epoch.h"
#include "backing/ioq.h"
#include "lib/crc32c.h"
#include "lib/log.h"

static void quiet(enum cpc_log_level level, const char *line)
{
}

#define FILE_SIZE (8 * MIB)

struct fixture {
	char dir[64];
	char path[80];
	char err[256];
};

static int setup(void **state)
{
	static struct fixture f;

	strcpy(f.dir, "/tmp/cpc-backing-XXXXXX");
	assert_non_null(mkdtemp(f.dir));
	snprintf(f.path, sizeof(f.path), "%s/pool", f.dir);
	assert_int_equal(cpc_backing_create_file(f.path, FILE_SIZE, false, f.err, sizeof(f.err)),
			 0);
	*state = &f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	unlink(f->path);
	return rmdir(f->dir);
}

static int open_as(struct fixture *f, unsigned flags, enum cpc_direct direct,
		   struct cpc_backing **b)
{
	return cpc_backing_open_file(f->path, flags, direct, b, f->err, sizeof(f->err));
}

static struct cpc_backing *must_open(struct fixture *f, unsigned flags, enum cpc_direct direct)
{
	struct cpc_backing *b = NULL;
	int ret = open_as(f, flags, direct, &b);

	if (ret)
		fail_msg("%s", f->err);
	return b;
}

static long allocated_bytes(struct fixture *f)
{
	struct stat st;

	assert_int_equal(stat(f->path, &st), 0);
	return st.st_blocks * 512;
}

static void crc32c_has_the_standard_value(void **state)
{
	assert_int_equal(cpc_crc32c(0, "123456789", 9), 0xe3069283);
	assert_int_equal(cpc_crc32c(cpc_crc32c(0, "1234", 4), "56789", 5), 0xe3069283);
	assert_int_equal(cpc_crc32c(0, "", 0), 0);
}

static void what_is_written_is_read_direct_or_not(void **state)
{
	static const enum cpc_direct modes[] = {CPC_DIRECT_AUTO, CPC_DIRECT_OFF};
	struct fixture *f = *state;

	for (size_t i = 0; i < CPC_ARRAY_SIZE(modes); i++) {
		struct cpc_backing *b = must_open(f, 0, modes[i]);
		struct cpc_backing_stats s;

		assert_int_equal(cpc_backing_size(b), FILE_SIZE);
		assert_int_equal(test_put(b, 5, 'a' + (int)i), 0);
		assert_int_equal(test_get(b, 5), 'a' + (int)i);
		assert_int_equal(cpc_backing_flush(b), 0);
		cpc_backing_get_stats(b, &s);
		assert_int_equal(s.reads, 1);
		assert_int_equal(s.writes, 1);
		assert_int_equal(s.flushes, 1);
		assert_int_equal(s.bytes_written, CPC_BLOCK_SIZE);
		assert_int_equal(s.bytes_written_by[CPC_CAUSE_DATA], CPC_BLOCK_SIZE);
		assert_int_equal(s.errors, 0);
		if (modes[i] == CPC_DIRECT_OFF)
			assert_false(b->direct);
		cpc_backing_close(b);
	}
}

static void a_range_beyond_the_end_is_eio(void **state)
{
	struct fixture *f = *state;
	struct cpc_backing *b = must_open(f, 0, CPC_DIRECT_AUTO);
	struct cpc_backing_stats s;

	assert_int_equal(test_get(b, FILE_SIZE / CPC_BLOCK_SIZE), -EIO);
	assert_int_equal(test_put(b, FILE_SIZE / CPC_BLOCK_SIZE, 1), -EIO);
	assert_int_equal(test_get(b, UINT64_MAX / CPC_BLOCK_SIZE), -EIO);
	assert_int_equal(cpc_backing_discard(b, 0, FILE_SIZE + CPC_BLOCK_SIZE), -EIO);
	cpc_backing_get_stats(b, &s);
	assert_int_equal(s.errors, 4);
	cpc_backing_close(b);
}

static void a_truncated_file_reads_as_eio(void **state)
{
	static const enum cpc_direct modes[] = {CPC_DIRECT_AUTO, CPC_DIRECT_OFF};
	struct fixture *f = *state;
	uint64_t size;

	for (size_t i = 0; i < CPC_ARRAY_SIZE(modes); i++) {
		struct cpc_backing *b;

		assert_int_equal(truncate(f->path, FILE_SIZE), 0);
		b = must_open(f, 0, modes[i]);
		assert_int_equal(truncate(f->path, 5 * CPC_BLOCK_SIZE + 100), 0);
		assert_int_equal(test_get(b, 4), 0);
		assert_int_equal(test_get(b, 5), -EIO);
		assert_int_equal(test_get(b, 6), -EIO);
		assert_int_equal(cpc_backing_current_size(b, &size), 0);
		assert_int_equal(size, 5 * CPC_BLOCK_SIZE);
		cpc_backing_close(b);
	}
}

static void a_read_only_backing_is_not_written(void **state)
{
	struct fixture *f = *state;
	struct cpc_backing *b = must_open(f, CPC_BACKING_READONLY, CPC_DIRECT_AUTO);

	assert_int_equal(test_get(b, 0), 0);
	assert_int_equal(test_put(b, 0, 1), -EROFS);
	assert_int_equal(cpc_backing_discard(b, 0, CPC_BLOCK_SIZE), -EROFS);
	cpc_backing_close(b);
}

static void what_is_not_a_pool_file_is_refused(void **state)
{
	struct fixture *f = *state;
	struct cpc_backing *b;

	assert_int_equal(
	    cpc_backing_open_file(f->dir, 0, CPC_DIRECT_AUTO, &b, f->err, sizeof(f->err)), -EINVAL);
	assert_non_null(strstr(f->err, "not a block device"));
	assert_int_equal(
	    cpc_backing_open_file("/dev/null", 0, CPC_DIRECT_AUTO, &b, f->err, sizeof(f->err)),
	    -EINVAL);
	assert_int_equal(
	    cpc_backing_open_file("/nowhere/pool", 0, CPC_DIRECT_AUTO, &b, f->err, sizeof(f->err)),
	    -ENOENT);
	assert_non_null(strstr(f->err, "/nowhere/pool: "));
	assert_int_equal(truncate(f->path, 100), 0);
	assert_int_equal(open_as(f, 0, CPC_DIRECT_AUTO, &b), -EINVAL);
}

static void a_created_file_is_allocated_unless_sparse(void **state)
{
	struct fixture *f = *state;

	assert_true(allocated_bytes(f) >= (long)FILE_SIZE);
	assert_int_equal(cpc_backing_create_file(f->path, FILE_SIZE, false, f->err, sizeof(f->err)),
			 -EEXIST);
	unlink(f->path);
	assert_int_equal(cpc_backing_create_file(f->path, FILE_SIZE, true, f->err, sizeof(f->err)),
			 0);
	assert_true(allocated_bytes(f) < (long)FILE_SIZE / 2);
	unlink(f->path);
	assert_int_equal(cpc_backing_create_file(f->path, 5000, true, f->err, sizeof(f->err)),
			 -EINVAL);
	assert_int_not_equal(access(f->path, F_OK), 0);
}

/* A file that cannot be had in full is not left behind. */
static void a_file_without_room_is_removed(void **state)
{
	struct fixture *f = *state;
	struct rlimit old, small;

	unlink(f->path);
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	small = (struct rlimit){1 * MIB, old.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	assert_int_equal(cpc_backing_create_file(f->path, FILE_SIZE, false, f->err, sizeof(f->err)),
			 -EFBIG);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	assert_int_not_equal(access(f->path, F_OK), 0);
}

static void only_a_sparse_file_is_punched(void **state)
{
	struct fixture *f = *state;
	struct cpc_backing *b = must_open(f, 0, CPC_DIRECT_AUTO);

	test_put(b, 0, 'a');
	assert_int_equal(cpc_backing_discard(b, 0, FILE_SIZE), 0);
	assert_int_equal(cpc_backing_flush(b), 0);
	assert_true(allocated_bytes(f) >= (long)FILE_SIZE);
	assert_int_equal(test_get(b, 0), 'a');
	cpc_backing_close(b);
	b = must_open(f, CPC_BACKING_SPARSE, CPC_DIRECT_AUTO);
	assert_int_equal(cpc_backing_discard(b, 0, FILE_SIZE), 0);
	assert_true(allocated_bytes(f) < (long)FILE_SIZE / 2);
	assert_int_equal(test_get(b, 0), 0);
	assert_int_equal(cpc_backing_size(b), FILE_SIZE);
	cpc_backing_close(b);
}

/* ---- ownership ---- */

/* Opens in a child, which tells through a pipe and then stays. Return: its pid. */
static pid_t owner_process(struct fixture *f, unsigned flags, bool daemonize)
{
	int fds[2], alive[2];
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	assert_int_equal(pipe(alive), 0);
	pid = fork();
	if (!pid) {
		struct cpc_backing *b;
		int ret = open_as(f, flags, CPC_DIRECT_AUTO, &b);

		if (daemonize && fork())
			_exit(0);
		pid = getpid();
		if (ret || write(fds[1], &pid, sizeof(pid)) != sizeof(pid))
			_exit(1);
		close(alive[1]);
		_exit((int)read(alive[0], &pid, 1)); /* returns when the test has died */
	}
	close(fds[1]);
	close(alive[0]);
	if (daemonize)
		waitpid(pid, NULL, 0);
	assert_int_equal(read(fds[0], &pid, sizeof(pid)), sizeof(pid));
	close(fds[0]);
	return pid;
}

static void assert_refused_naming(struct fixture *f, unsigned flags, pid_t pid)
{
	struct cpc_backing *b;
	char word[32];

	assert_int_equal(open_as(f, flags, CPC_DIRECT_AUTO, &b), -EBUSY);
	snprintf(word, sizeof(word), "process %ld", (long)pid);
	if (!strstr(f->err, word))
		fail_msg("\"%s\" does not name %s", f->err, word);
}

/* The lock goes when the kernel has torn the process down, which is before wait() returns. */
static void kill_owner(pid_t pid, bool child)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	if (child)
		assert_int_equal(waitpid(pid, NULL, 0), pid);
	else
		while (!kill(pid, 0))
			usleep(1000);
}

static void a_second_owner_is_refused_and_kill_frees_the_file(void **state)
{
	struct fixture *f = *state;
	pid_t pid = owner_process(f, 0, false);

	assert_refused_naming(f, 0, pid);
	assert_refused_naming(f, CPC_BACKING_READONLY, pid);
	kill_owner(pid, true);
	cpc_backing_close(must_open(f, 0, CPC_DIRECT_AUTO));
}

static void a_daemon_keeps_the_lock_of_its_parent(void **state)
{
	struct fixture *f = *state;
	pid_t pid = owner_process(f, 0, true);
	struct cpc_backing *b = NULL;

	assert_refused_naming(f, 0, pid);
	assert_int_equal(kill(pid, SIGKILL), 0);
	for (int i = 0; i < 2000 && open_as(f, 0, CPC_DIRECT_AUTO, &b); i++)
		usleep(1000);
	assert_non_null(b);
	cpc_backing_close(b);
}

static void readers_share_and_refuse_an_owner(void **state)
{
	struct fixture *f = *state;
	pid_t pid = owner_process(f, CPC_BACKING_READONLY, false);

	cpc_backing_close(must_open(f, CPC_BACKING_READONLY, CPC_DIRECT_AUTO));
	assert_refused_naming(f, 0, pid);
	kill_owner(pid, true);
}

static void another_name_of_the_file_is_the_same_file(void **state)
{
	struct fixture *f = *state;
	struct cpc_backing *b = must_open(f, 0, CPC_DIRECT_AUTO), *second;
	char other[90];

	snprintf(other, sizeof(other), "%s/other", f->dir);
	assert_int_equal(link(f->path, other), 0);
	assert_int_equal(
	    cpc_backing_open_file(other, 0, CPC_DIRECT_AUTO, &second, f->err, sizeof(f->err)),
	    -EBUSY);
	unlink(other);
	cpc_backing_close(b);
}

/* ---- queues ---- */

#define NR_IOS 300

struct batch {
	struct cpc_io ios[NR_IOS];
	struct iovec iovs[NR_IOS][2];
	char *mem;
	unsigned done;
};

static void batch_done(struct cpc_io *io)
{
	((struct batch *)io->priv)->done++;
}

static void batch_init(struct batch *bt, enum cpc_io_op op, struct cpc_flush_epoch *fe)
{
	memset(bt, 0, sizeof(*bt));
	bt->mem = test_buf((size_t)NR_IOS * 2 * CPC_BLOCK_SIZE);
	for (unsigned i = 0; i < NR_IOS; i++) {
		char *p = bt->mem + (size_t)i * 2 * CPC_BLOCK_SIZE;

		memset(p, op == CPC_IO_WRITE ? (int)i % 251 : 0, 2 * CPC_BLOCK_SIZE);
		bt->iovs[i][0] = (struct iovec){p, CPC_BLOCK_SIZE};
		bt->iovs[i][1] = (struct iovec){p + CPC_BLOCK_SIZE, CPC_BLOCK_SIZE};
		bt->ios[i] = (struct cpc_io){.op = op,
					     .bytenr = BLOCK(i * 2),
					     .iov = bt->iovs[i],
					     .nr_iov = 2,
					     .fe = fe,
					     .done = batch_done,
					     .priv = bt};
	}
}

static void run_batch(struct cpc_ioq *q, struct batch *bt)
{
	for (unsigned i = 0; i < NR_IOS; i++)
		cpc_ioq_submit(q, &bt->ios[i]);
	cpc_ioq_wait(q);
	assert_int_equal(bt->done, NR_IOS);
	assert_int_equal(cpc_ioq_in_flight(q), 0);
}

static void a_queue_does_everything_once(void **state)
{
	static const enum cpc_direct modes[] = {CPC_DIRECT_AUTO, CPC_DIRECT_OFF};
	static struct batch out, in;
	struct fixture *f = *state;

	for (size_t m = 0; m < CPC_ARRAY_SIZE(modes); m++) {
		struct cpc_backing *b = must_open(f, 0, modes[m]);
		struct cpc_flush_epoch_stats s;
		struct cpc_flush_epoch fe;
		struct cpc_ioq *q;

		cpc_flush_epoch_init(&fe, b, NULL, NULL);
		assert_int_equal(cpc_ioq_open(b, 16, &q), 0);
		batch_init(&out, CPC_IO_WRITE, &fe);
		run_batch(q, &out);
		cpc_flush_epoch_get_stats(&fe, &s);
		assert_int_equal(s.unflushed_bytes, BLOCK(NR_IOS * 2));
		assert_int_equal(cpc_flush_epoch_flush(&fe, CPC_FLUSH_LOG), 0);
		batch_init(&in, CPC_IO_READ, NULL);
		run_batch(q, &in);
		for (unsigned i = 0; i < NR_IOS; i++)
			assert_int_equal(in.ios[i].result, 0);
		assert_memory_equal(in.mem, out.mem, (size_t)BLOCK(NR_IOS * 2));
		cpc_free(in.mem);
		cpc_free(out.mem);
		cpc_ioq_close(q);
		cpc_flush_epoch_destroy(&fe);
		cpc_backing_close(b);
	}
}

static void a_queue_reports_errors_and_short_transfers(void **state)
{
	static struct batch in;
	struct fixture *f = *state;
	struct cpc_backing *b = must_open(f, 0, CPC_DIRECT_OFF);
	struct cpc_ioq *q = cpc_ioq_get(b);

	assert_non_null(q);
	batch_init(&in, CPC_IO_READ, NULL);
	in.ios[7].bytenr = FILE_SIZE;
	assert_int_equal(truncate(f->path, (off_t)BLOCK(NR_IOS * 2 - 1)), 0);
	run_batch(q, &in);
	for (unsigned i = 0; i < NR_IOS; i++)
		assert_int_equal(in.ios[i].result, i == 7 || i == NR_IOS - 1 ? -EIO : 0);
	cpc_free(in.mem);
	cpc_ioq_put(b, q);
	assert_ptr_equal(cpc_ioq_get(b), q);
	cpc_ioq_put(b, q);
	cpc_backing_close(b);
}

static void nothing_is_waited_for_without_need(void **state)
{
	static struct batch out;
	struct fixture *f = *state;
	struct cpc_backing *b = must_open(f, 0, CPC_DIRECT_AUTO);
	struct cpc_ioq *q = cpc_ioq_get(b);

	assert_int_equal(cpc_ioq_reap(q, 0), 0);
	assert_int_equal(cpc_ioq_reap(q, 5), 0);
	batch_init(&out, CPC_IO_WRITE, NULL);
	cpc_ioq_submit(q, &out.ios[0]);
	cpc_ioq_submit(q, &out.ios[1]);
	cpc_ioq_flush_submissions(q);
	cpc_ioq_reap(q, 1);
	assert_true(out.done >= 1);
	cpc_ioq_wait(q);
	assert_int_equal(out.done, 2);
	cpc_ioq_put(b, q);
	cpc_free(out.mem);
	cpc_backing_close(b);
}

static void *queue_in_thread(void *arg)
{
	struct cpc_backing *b = arg;
	struct batch *out = cpc_zalloc(sizeof(*out));
	struct cpc_ioq *q = cpc_ioq_get(b);

	batch_init(out, CPC_IO_WRITE, NULL);
	for (unsigned i = 0; i < NR_IOS; i++)
		cpc_ioq_submit(q, &out->ios[i]);
	cpc_ioq_wait(q);
	cpc_assert(out->done == NR_IOS);
	cpc_ioq_put(b, q);
	cpc_free(out->mem);
	cpc_free(out);
	return NULL;
}

static void queues_move_between_threads(void **state)
{
	struct fixture *f = *state;
	struct cpc_backing *b = must_open(f, 0, CPC_DIRECT_AUTO);
	pthread_t threads[4];

	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 4; i++)
			assert_int_equal(cpc_thread_start(&threads[i], "q", queue_in_thread, b), 0);
		for (int i = 0; i < 4; i++)
			pthread_join(threads[i], NULL);
	}
	cpc_backing_close(b);
}

/* Makes a system call fail from now on, if its second argument is not 0 or `any`. */
static void forbid_syscall(unsigned nr, bool any)
{
	struct sock_filter filter[] = {
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 3),
	    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
	    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, !any, 0),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
	    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {CPC_ARRAY_SIZE(filter), filter};

	cpc_assert(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	cpc_assert(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog));
}

/* In a child: a queue whose ring is refused at the start, or breaks in the middle. */
static void queue_with_broken_ring(struct cpc_backing *b, bool from_start)
{
	static struct batch out, in;
	struct cpc_ioq *q;

	batch_init(&out, CPC_IO_WRITE, NULL);
	if (from_start)
		forbid_syscall(__NR_io_uring_setup, true);
	cpc_assert(!cpc_ioq_open(b, 256, &q));
	cpc_assert(!from_start || cpc_ioq_is_sync(q));
	for (unsigned i = 0; i < NR_IOS; i++) {
		if (i == NR_IOS / 2 && !from_start)
			forbid_syscall(__NR_io_uring_enter, false);
		cpc_ioq_submit(q, &out.ios[i]);
	}
	cpc_ioq_wait(q);
	cpc_assert(out.done == NR_IOS && cpc_ioq_is_sync(q));
	batch_init(&in, CPC_IO_READ, NULL);
	run_batch(q, &in);
	for (unsigned i = 0; i < NR_IOS; i++)
		cpc_assert(!in.ios[i].result && !out.ios[i].result);
	cpc_assert(!memcmp(in.mem, out.mem, (size_t)BLOCK(NR_IOS * 2)));
	cpc_ioq_close(q);
}

static void without_io_uring_a_queue_is_synchronous(void **state)
{
	struct fixture *f = *state;
	struct cpc_backing *b = must_open(f, 0, CPC_DIRECT_AUTO);
	int status;

	for (int from_start = 0; from_start < 2; from_start++) {
		pid_t pid = fork();

		if (!pid) {
			cpc_log_set_sink(quiet);
			queue_with_broken_ring(b, from_start);
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
	cpc_backing_close(b);
}

/* ---- a block device ---- */

static bool run(const char *fmt, const char *arg, char *out, size_t len)
{
	char command[300];
	bool ok;
	FILE *p;

	snprintf(command, sizeof(command), fmt, arg);
	p = popen(command, "re");
	if (!p)
		return false;
	ok = fgets(out, (int)len, p);
	if (ok)
		out[strcspn(out, "\n")] = 0;
	return pclose(p) == 0 && ok;
}

static void with_loop_device(const char *dev)
{
	struct cpc_backing *b, *second;
	char err[256];
	int ret = cpc_backing_open_file(dev, 0, CPC_DIRECT_AUTO, &b, err, sizeof(err));

	if (ret) {
		print_error("%s\n", err);
		assert_int_equal(ret, 0);
	}
	assert_int_equal(cpc_backing_size(b), FILE_SIZE);
	assert_int_equal(test_put(b, 3, 'l'), 0);
	assert_int_equal(cpc_backing_flush(b), 0);
	assert_int_equal(test_get(b, 3), 'l');
	assert_int_equal(cpc_backing_discard(b, 0, FILE_SIZE), 0);
	ret = cpc_backing_open_file(dev, 0, CPC_DIRECT_AUTO, &second, err, sizeof(err));
	assert_int_equal(ret, -EBUSY);
	ret = cpc_backing_open_file(dev, CPC_BACKING_READONLY, CPC_DIRECT_AUTO, &second, err,
				    sizeof(err));
	assert_int_equal(ret, -EBUSY);
	cpc_backing_close(b);
}

static void a_block_device_has_one_owner(void **state)
{
	char path[] = "/dev/shm/cpc-loop-XXXXXX", dev[64], junk[64];
	int fd;

	if (geteuid() || access("/dev/loop-control", W_OK))
		skip();
	fd = mkstemp(path);
	if (fd < 0)
		skip();
	assert_int_equal(ftruncate(fd, FILE_SIZE), 0);
	close(fd);
	if (!run("losetup -f --show %s 2>/dev/null", path, dev, sizeof(dev))) {
		unlink(path);
		skip();
	}
	unlink(path);
	/* detaching now lets the device go with its last user, however this test ends */
	fd = open(dev, O_RDONLY | O_CLOEXEC);
	run("losetup -d %s", dev, junk, sizeof(junk));
	with_loop_device(dev);
	close(fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
	    TEST(crc32c_has_the_standard_value),
	    TEST(what_is_written_is_read_direct_or_not),
	    TEST(a_range_beyond_the_end_is_eio),
	    TEST(a_truncated_file_reads_as_eio),
	    TEST(a_read_only_backing_is_not_written),
	    TEST(what_is_not_a_pool_file_is_refused),
	    TEST(a_created_file_is_allocated_unless_sparse),
	    TEST(a_file_without_room_is_removed),
	    TEST(only_a_sparse_file_is_punched),
	    TEST(a_second_owner_is_refused_and_kill_frees_the_file),
	    TEST(a_daemon_keeps_the_lock_of_its_parent),
	    TEST(readers_share_and_refuse_an_owner),
	    TEST(another_name_of_the_file_is_the_same_file),
	    TEST(a_queue_does_everything_once),
	    TEST(a_queue_reports_errors_and_short_transfers),
	    TEST(nothing_is_waited_for_without_need),
	    TEST(queues_move_between_threads),
	    TEST(without_io_uring_a_queue_is_synchronous),
	    TEST(a_block_device_has_one_owner),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
