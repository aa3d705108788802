// SPDX-License-Identifier: GPL-2.0
/*
 * Blocks registered with RDMA: the kernel's own soft-RoCE (rdma_rxe), over the loopback
 * device, moves bytes between two of them. A registration pins for long.
 */
#include <infiniband/verbs.h>

#include "binpool_test.h"
#include "driver.h"
#include "share.h"

#define LINK	  "binpool_test" /* the device, which is there from the first test to the end */
#define SCATTERED 2		 /* frames of a block that has a run for each */
#define ALL	  (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

/* The device, and two queue pairs of it that are each other's peers. */
struct rdma {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp[2];
};

FIXTURE(rdma)
{
	int dev;
	int log;
	int fds;
	__u64 frame;
	struct binpool_info info;
	long long dropped;
};

FIXTURE_SETUP(rdma)
{
	self->log = log_open();
	self->dev = open(DEVICE, O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, self->dev);
	ASSERT_EQ(0, device_info(self->dev, &self->info));
	self->frame = self->info.frame_bytes;
	self->fds = count_fds();
	self->dropped = attr_read("pinned_dropped_bytes");
	if (!access("/sys/class/infiniband/" LINK, F_OK))
		return;
	if (!module_insert("rdma_rxe"))
		SKIP(return, "this kernel has no rdma_rxe");
	if (!module_insert("ib_uverbs"))
		SKIP(return, "this kernel has no ib_uverbs");
	ASSERT_TRUE(command("rdma link add " LINK " type rxe netdev lo"))
	{
		TH_LOG("rdma (of iproute2) made no device over lo");
	}
}

FIXTURE_TEARDOWN(rdma)
{
	struct binpool_info info;

	if (_metadata->exit_code == KSFT_FAIL)
		return;
	EXPECT_EQ(self->fds, count_fds());
	EXPECT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
	EXPECT_TRUE(attr_becomes("active_bytes", self->info.active_bytes, SOON_MS));
	EXPECT_EQ(self->dropped, attr_read("pinned_dropped_bytes"));
	EXPECT_EQ(0, device_info(self->dev, &info));
	EXPECT_EQ(0, info.opener_bytes);
	close(self->dev);
	EXPECT_EQ(0, log_count_bad(self->log));
}

/* The entry of the device's table for 127.0.0.1, which the kernel makes a moment later; or -1. */
static int loopback_gid(struct ibv_context *ctx, union ibv_gid *gid)
{
	static const __u8 loopback[16] = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1};
	__u64 end = now_ms() + SOON_MS * (__u64)slowness();

	do {
		for (int i = 0; i < 16; i++) {
			if (!ibv_query_gid(ctx, 1, i, gid) && !memcmp(gid->raw, loopback, 16))
				return i;
		}
		sleep_ms(20);
	} while (now_ms() < end);
	return -1;
}

/* Makes @qp ready to send to and to receive from the queue pair number @peer. */
static int connect_to(struct ibv_qp *qp, __u32 peer, const union ibv_gid *gid, int gid_index)
{
	struct ibv_qp_attr init = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = ALL,
	};
	struct ibv_qp_attr receive = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr =
			{
				.is_global = 1,
				.port_num = 1,
				.grh = {.dgid = *gid,
					.sgid_index = (__u8)gid_index,
					.hop_limit = 1},
			},
	};
	/* No answer is waited for 268 ms, and 7 times: machines here may be slow. */
	struct ibv_qp_attr send = {
		.qp_state = IBV_QPS_RTS,
		.timeout = 16,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 4,
	};

	return ibv_modify_qp(qp, &init,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
		       ?: ibv_modify_qp(qp, &receive,
					IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
						IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
		       ?: ibv_modify_qp(qp, &send,
					IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						IBV_QP_MAX_QP_RD_ATOMIC);
}

/* What failed, or "nothing". */
static const char *rdma_open(struct rdma *r)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
	};
	union ibv_gid gid;
	int gid_index;

	memset(r, 0, sizeof(*r));
	for (int i = 0; list && list[i]; i++) {
		if (!strcmp(ibv_get_device_name(list[i]), LINK))
			r->ctx = ibv_open_device(list[i]);
	}
	ibv_free_device_list(list);
	if (!r->ctx)
		return "ibv_open_device";
	r->pd = ibv_alloc_pd(r->ctx);
	r->cq = ibv_create_cq(r->ctx, 8, NULL, NULL, 0);
	if (!r->pd || !r->cq)
		return "ibv_alloc_pd or ibv_create_cq";
	attr.send_cq = r->cq;
	attr.recv_cq = r->cq;
	for (int i = 0; i < 2; i++) {
		r->qp[i] = ibv_create_qp(r->pd, &attr);
		if (!r->qp[i])
			return "ibv_create_qp";
	}
	gid_index = loopback_gid(r->ctx, &gid);
	if (gid_index < 0)
		return "an address for the loopback device";
	for (int i = 0; i < 2; i++) {
		if (connect_to(r->qp[i], r->qp[!i]->qp_num, &gid, gid_index))
			return "ibv_modify_qp";
	}
	return "nothing";
}

static int rdma_close(struct rdma *r)
{
	return ibv_destroy_qp(r->qp[0])
		       ?: ibv_destroy_qp(r->qp[1])
		       ?: ibv_destroy_cq(r->cq) ?: ibv_dealloc_pd(r->pd) ?: ibv_close_device(r->ctx);
}

/* Bytes that are at @here from or to @there, of the other side's registration. */
static int post(struct rdma *r, enum ibv_wr_opcode what, struct ibv_mr *mine, const void *here,
		struct ibv_mr *theirs, const void *there, __u64 bytes)
{
	struct ibv_sge part = {
		.addr = (uintptr_t)here,
		.length = (__u32)bytes,
		.lkey = mine->lkey,
	};
	struct ibv_send_wr *bad,
		wr = {
			.opcode = what,
			.send_flags = IBV_SEND_SIGNALED,
			.sg_list = &part,
			.num_sge = 1,
			.wr.rdma = {.remote_addr = (uintptr_t)there, .rkey = theirs->rkey},
		};

	return ibv_post_send(r->qp[0], &wr, &bad);
}

/* The same, until it is done; how it ended, or -1. */
static int move(struct rdma *r, enum ibv_wr_opcode what, struct ibv_mr *mine, const void *here,
		struct ibv_mr *theirs, const void *there, __u64 bytes)
{
	__u64 end = now_ms() + SOON_MS * (__u64)slowness();
	struct ibv_wc wc;
	int done;

	if (post(r, what, mine, here, theirs, there, bytes))
		return -1;
	do {
		done = ibv_poll_cq(r->cq, 1, &wc);
		if (!done)
			sleep_ms(1);
	} while (!done && now_ms() < end);
	return done == 1 ? (int)wc.status : -1;
}

/* Written and read from block to block, wholly and at odd places, across frames and runs. */
TEST_F_TIMEOUT(rdma, write_and_read, 90)
{
	const __u64 len = SCATTERED * self->frame, frame = self->frame, page = page_bytes();
	const __u64 around = 32 * page; /* where frames and runs meet */
	const struct {
		__u64 from, to, bytes;
	} parts[] = {
		{frame - 5, frame - 3, 11},
		{frame - around, frame + 7, 3 * page},
		{frame - 9 * page - 2, frame - 10 * page + 1, 20 * page + 1},
	};
	struct binpool_alloc a = alloc_request(len, BINPOOL_ALLOC_CONTIG);
	int fds[2] = {block_scattered(self->dev, frame, SCATTERED), -1};
	struct ibv_mr *mr[2];
	struct binpool_query q;
	struct rdma r;
	char *p[2];

	ASSERT_STREQ("nothing", rdma_open(&r));
	ASSERT_EQ(0, block_query(fds[0], &q));
	ASSERT_EQ(SCATTERED, q.runs);
	ASSERT_EQ(0, device_alloc(self->dev, &a));
	fds[1] = a.fd;
	for (int i = 0; i < 2; i++) {
		p[i] = block_map(fds[i], len);
		mr[i] = ibv_reg_mr(r.pd, p[i], len, ALL);
		ASSERT_NE(NULL, mr[i]);
	}
	fill(p[0], len, 1, 0);
	ASSERT_EQ(IBV_WC_SUCCESS, move(&r, IBV_WR_RDMA_WRITE, mr[0], p[0], mr[1], p[1], len));
	ASSERT_TRUE(filled(p[1], len, 1, 0));
	for (size_t i = 0; i < 2 * ARRAY_SIZE(parts); i++) {
		const bool write = i % 2;
		const char *from = p[!write] + parts[i / 2].from;
		char *to = p[write] + parts[i / 2].to;
		const __u64 bytes = parts[i / 2].bytes;

		fill(p[!write] + frame - around, 2 * around, i + 2, 0);
		memset(p[write] + frame - around, 0x5a, 2 * around);
		ASSERT_EQ(IBV_WC_SUCCESS,
			  write ? move(&r, IBV_WR_RDMA_WRITE, mr[0], from, mr[1], to, bytes)
				: move(&r, IBV_WR_RDMA_READ, mr[0], to, mr[1], from, bytes));
		ASSERT_EQ(0, memcmp(to, from, bytes));
		ASSERT_EQ(0x5a, to[-1]);
		ASSERT_EQ(0x5a, to[bytes]);
	}
	/* And not beyond what is registered. */
	ASSERT_EQ(IBV_WC_REM_ACCESS_ERR,
		  move(&r, IBV_WR_RDMA_WRITE, mr[0], p[0], mr[1], p[1] + len - 7, 8));
	for (int i = 0; i < 2; i++) {
		ASSERT_EQ(0, ibv_dereg_mr(mr[i]));
		munmap(p[i], len);
		close(fds[i]);
	}
	ASSERT_EQ(0, attr_read("limbo_bytes"));
	ASSERT_EQ(0, rdma_close(&r));
}

/* Closed while it is registered, a block's memory is nobody else's, and the peer still has it. */
TEST_F_TIMEOUT(rdma, after_the_block, 60)
{
	const __u64 len = 2 * self->frame, part = 16 * page_bytes();
	int fd = block_alloc(self->dev, len), fd2 = block_alloc(self->dev, self->frame), others[4];
	char *p = block_map(fd, len), *mine = block_map(fd2, self->frame), *q;
	struct ibv_mr *mr, *my_mr;
	struct rdma r;

	ASSERT_STREQ("nothing", rdma_open(&r));
	fill(p, len, 1, 0);
	mr = ibv_reg_mr(r.pd, p, len, ALL);
	ASSERT_NE(NULL, mr);
	my_mr = ibv_reg_mr(r.pd, mine, self->frame, ALL);
	ASSERT_NE(NULL, my_mr);
	munmap(p, len);
	close(fd);
	ASSERT_EQ((long long)len, attr_read("limbo_bytes"));
	for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
		others[i] = block_alloc(self->dev, self->frame);
		q = block_map(others[i], self->frame);
		ASSERT_EQ(self->frame, first_nonzero(q, self->frame));
		memset(q, 0xff, self->frame);
		munmap(q, self->frame);
	}
	/* Nothing is at these addresses; the peer's keys are for the memory. */
	ASSERT_EQ(IBV_WC_SUCCESS,
		  move(&r, IBV_WR_RDMA_READ, my_mr, mine, mr, p + self->frame - part / 2, part));
	ASSERT_TRUE(filled(mine, part, 1, self->frame - part / 2));
	fill(mine, part, 2, 0);
	ASSERT_EQ(IBV_WC_SUCCESS, move(&r, IBV_WR_RDMA_WRITE, my_mr, mine, mr, p, part));
	ASSERT_EQ(IBV_WC_SUCCESS, move(&r, IBV_WR_RDMA_READ, my_mr, mine + part, mr, p, part));
	ASSERT_TRUE(filled(mine + part, part, 2, 0));
	ASSERT_EQ((long long)len, attr_read("limbo_bytes"));
	ASSERT_EQ(0, ibv_dereg_mr(mr));
	ASSERT_TRUE(attr_becomes("limbo_bytes", 0, 3000));
	ASSERT_EQ(IBV_WC_REM_ACCESS_ERR, move(&r, IBV_WR_RDMA_WRITE, my_mr, mine, mr, p, part));
	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		close(others[i]);
	ASSERT_EQ(0, ibv_dereg_mr(my_mr));
	munmap(mine, self->frame);
	close(fd2);
	ASSERT_EQ(0, rdma_close(&r));
}

/* Killed while bytes are on their way: they arrive nowhere else, and all of it comes back. */
TEST_F_TIMEOUT(rdma, registered_and_killed, 60)
{
	const __u64 len = 2 * self->frame;

	ASSERT_TRUE(pool_empties());
	for (int i = 0; i < 2; i++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			int fd = block_alloc(self->dev, len);
			char *p = block_map(fd, len);
			struct ibv_mr *mr;
			struct rdma r;

			if (first_nonzero(p, len) != len || strcmp(rdma_open(&r), "nothing"))
				_exit(1);
			mr = ibv_reg_mr(r.pd, p, len, ALL);
			memset(p, 0xff, len / 2);
			if (!mr || post(&r, IBV_WR_RDMA_WRITE, mr, p, mr, p + len / 2, len / 2))
				_exit(2);
			if (i) {
				munmap(p, len);
				close(fd);
			}
			kill(getpid(), SIGKILL);
		}
		ASSERT_EQ(128 + SIGKILL, child_status(pid));
		ASSERT_TRUE(attr_becomes("active_bytes", self->info.active_bytes, SOON_MS));
		ASSERT_TRUE(attr_becomes("limbo_bytes", 0, SOON_MS));
		/* What is just being cleaned is not there for the next one. */
		ASSERT_TRUE(cleaning_ends());
		ASSERT_EQ((long long)len, attr_read("managed_bytes"));
	}
}

/* Whether the kernel registers @len bytes of ordinary shared memory that may only be read. */
static bool shared_is_registered(struct ibv_pd *pd, __u64 len)
{
	int fd = memfd_create("shared", MFD_CLOEXEC);
	char *p = ftruncate(fd, (off_t)len) ? MAP_FAILED
					    : mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, p, len, IBV_ACCESS_REMOTE_READ);

	if (mr)
		ibv_dereg_mr(mr);
	munmap(p, len);
	close(fd);
	return mr;
}

/*
 * What may not be written is not registered for writing. For reading it is, unless the
 * kernel does that with no shared memory (before 6.2 it wants to write in any case).
 */
TEST_F(rdma, read_only)
{
	const __u64 len = self->frame;
	int fd = block_alloc(self->dev, len);
	char *p = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	struct ibv_mr *mr;
	struct rdma r;

	ASSERT_STREQ("nothing", rdma_open(&r));
	errno = 0;
	ASSERT_EQ(NULL, ibv_reg_mr(r.pd, p, len, ALL));
	ASSERT_EQ(EFAULT, errno);
	mr = ibv_reg_mr(r.pd, p, len, IBV_ACCESS_REMOTE_READ);
	ASSERT_EQ(shared_is_registered(r.pd, len), mr != NULL);
	if (mr) {
		ASSERT_EQ(0, ibv_dereg_mr(mr));
	}
	munmap(p, len);
	close(fd);
	ASSERT_EQ(0, attr_read("limbo_bytes"));
	ASSERT_EQ(0, rdma_close(&r));
}

static pid_t program;

static void __attribute__((constructor)) program_begins(void)
{
	program = getpid();
}

static void __attribute__((destructor)) link_delete(void)
{
	/* Tests are processes of their own. */
	if (getpid() == program)
		command("rdma link delete " LINK);
}

KERNEL_LOG_TEST

TEST_HARNESS_MAIN
