/* The floor: the minimum cost of a star of N hosts on this kernel.
 *
 * Makes and removes the kernel objects of a star (a wire namespace with one bridge, N host namespaces, N veth pairs,
 * addresses, links up) with hand-packed, batched netlink messages and nothing else.  It also makes the settings that the
 * product makes, so that the product's ratio to the floor does not include their cost.
 *
 * It reads commands from stdin, one per line, and answers each with one line of JSON:
 *     up NAME N     makes namespaces NAME and NAME.n1 ... NAME.nN in /run/netns
 *     down          removes them
 * "start" and "end" are nanoseconds of CLOCK_MONOTONIC before and after the work, which includes the preparation of
 * /run/netns.  The end of input, a signal or a failure removes the star; /run/netns is left as it was before.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_addr.h>
#include <linux/if_bridge.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/veth.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define NETNS_DIR "/run/netns"
#define OWN_NS "/proc/thread-self/ns/net"
#define HOSTS_MAX 1023 /* ports of a Linux bridge: BR_MAX_PORTS - 1 */
#define BATCH 64       /* veth pairs in one send */
#define BRIDGE 1001    /* chosen interface indices, so that the kernel need not be queried for them */
#define FIRST_PORT 1002
#define ETH0 2
#define MTU 1500

/* The product's settings in a new namespace, made before its interfaces, which inherit `default`. */
struct sysctl {
	const char *path, *value;
};
static const struct sysctl host_sysctls[] = {
	{"/proc/sys/net/ipv4/conf/all/rp_filter", "0"},
	{"/proc/sys/net/ipv4/conf/default/rp_filter", "0"},
	{"/proc/sys/net/ipv6/conf/default/accept_ra", "0"},
	{"/proc/sys/net/ipv6/conf/default/autoconf", "0"},
	{"/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1"},
	{NULL, NULL},
};
static const struct sysctl wire_sysctls[] = {
	{"/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"},
	{"/proc/sys/net/bridge/bridge-nf-call-iptables", "0"},
	{"/proc/sys/net/bridge/bridge-nf-call-ip6tables", "0"},
	{"/proc/sys/net/bridge/bridge-nf-call-arptables", "0"},
	{NULL, NULL},
};

struct namespace {
	int socket; /* rtnetlink socket opened in the namespace, or -1 */
	int fd;     /* descriptor of the namespace until its veth is made, then -1 */
	int named;  /* whether this process has made its file in /run/netns */
};

static char cluster[64];
static int host_count;
static struct namespace wire, hosts[HOSTS_MAX + 1]; /* hosts[1..host_count] */
static int root_ns = -1;
static int made_directory, made_mount;

static void clean_up(void);

static void fail(const char *format, ...)
{
	int error = errno;
	va_list arguments;

	fprintf(stderr, "floor: ");
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, ": %s\n", strerror(error));
	clean_up();
	exit(1);
}

static int64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* ---- netlink messages ---- */

static struct {
	_Alignas(4) char bytes[64 * 1024];
	size_t length;
	struct nlmsghdr *last;
} batch;
static uint32_t sequence;

static void *append(size_t length)
{
	void *place = batch.bytes + batch.length;

	if (batch.length + NLMSG_ALIGN(length) > sizeof batch.bytes) {
		errno = ENOBUFS;
		fail("a batch of netlink messages");
	}
	memset(place, 0, NLMSG_ALIGN(length));
	batch.length += NLMSG_ALIGN(length);
	return place;
}

static void *begin_message(uint16_t type, uint16_t flags, size_t header)
{
	batch.last = append(sizeof(struct nlmsghdr));
	batch.last->nlmsg_type = type;
	batch.last->nlmsg_flags = NLM_F_REQUEST | flags;
	batch.last->nlmsg_seq = ++sequence;
	return append(header);
}

static void end_message(void)
{
	batch.last->nlmsg_len = batch.bytes + batch.length - (char *)batch.last;
}

static struct rtattr *begin_attribute(uint16_t type)
{
	struct rtattr *attribute = append(sizeof *attribute);

	attribute->rta_type = type;
	return attribute;
}

static void end_attribute(struct rtattr *attribute)
{
	attribute->rta_len = batch.bytes + batch.length - (char *)attribute;
}

static void put(uint16_t type, const void *value, size_t length)
{
	struct rtattr *attribute = begin_attribute(type);

	memcpy(append(length), value, length);
	attribute->rta_len = sizeof *attribute + length;
}

static void put_text(uint16_t type, const char *text) { put(type, text, strlen(text) + 1); }
static void put_u32(uint16_t type, uint32_t value) { put(type, &value, sizeof value); }
static void put_u8(uint16_t type, uint8_t value) { put(type, &value, sizeof value); }

static void put_mac(uint8_t kind, int host)
{
	put(IFLA_ADDRESS, (uint8_t[]){2, 0, 0, kind, host >> 8, host}, 6);
}

static void begin_link(uint16_t flags, int index, int up)
{
	struct ifinfomsg *link = begin_message(RTM_NEWLINK, flags, sizeof *link);

	link->ifi_index = index;
	link->ifi_flags = link->ifi_change = up ? IFF_UP : 0;
}

/* Only the last message requests an acknowledgement; the kernel reports failed messages in any case. */
static void send_batch(int socket, const char *what)
{
	char answer[8192];

	batch.last->nlmsg_flags |= NLM_F_ACK;
	if (send(socket, batch.bytes, batch.length, 0) < 0)
		fail("sending %s", what);
	for (int done = 0; !done;) {
		ssize_t length = recv(socket, answer, sizeof answer, 0);

		if (length < 0)
			fail("receiving the answer to %s", what);
		for (struct nlmsghdr *m = (void *)answer; NLMSG_OK(m, length); m = NLMSG_NEXT(m, length)) {
			struct nlmsgerr *report = NLMSG_DATA(m);

			if (m->nlmsg_type != NLMSG_ERROR)
				continue;
			if (report->error) {
				errno = -report->error;
				fail("%s, message %u of its batch", what,
				     m->nlmsg_seq - ((struct nlmsghdr *)batch.bytes)->nlmsg_seq + 1);
			}
			done |= m->nlmsg_seq == batch.last->nlmsg_seq;
		}
	}
	batch.length = 0;
}

/* ---- namespaces ---- */

static int names_exist(void)
{
	DIR *directory = opendir(NETNS_DIR);
	int count = 0;

	if (!directory)
		fail("reading " NETNS_DIR);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count > 2;
}

/* Makes /run/netns a shared mount, so that removed names disappear in every mount namespace.  Never mounts over existing
 * names. */
static void prepare_directory(void)
{
	if (mkdir(NETNS_DIR, 0755) == 0)
		made_directory = 1;
	else if (errno != EEXIST)
		fail("making " NETNS_DIR);
	if (mount("", NETNS_DIR, "none", MS_SHARED, NULL) == 0 || names_exist())
		return;
	if (mount("none", NETNS_DIR, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=1m") < 0)
		fail("mounting " NETNS_DIR);
	made_mount = 1;
	if (mount("", NETNS_DIR, "none", MS_SHARED, NULL) < 0)
		fail("making " NETNS_DIR " shared");
}

/* Plain umount and rmdir, which fail if another program has put something there meanwhile. */
static void restore_directory(void)
{
	if (made_mount && umount2(NETNS_DIR, UMOUNT_NOFOLLOW) == 0)
		made_mount = 0;
	if (made_directory && !made_mount && rmdir(NETNS_DIR) == 0)
		made_directory = 0;
}

static void name_of(int host, char *path, size_t size)
{
	if (host)
		snprintf(path, size, NETNS_DIR "/%s.n%d", cluster, host);
	else
		snprintf(path, size, NETNS_DIR "/%s", cluster);
}

static void write_sysctl(const struct sysctl *setting)
{
	int fd = open(setting->path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 && errno == ENOENT)
		return; /* a kernel without IPv6, or without netfilter for bridges */
	if (fd < 0 || write(fd, setting->value, strlen(setting->value)) < 0)
		fail("setting %s", setting->path);
	close(fd);
}

/* Leaves the caller in the new namespace; host 0 is the wire namespace. */
static void make_namespace(struct namespace *namespace, int host)
{
	char path[128], alias[256];
	int file;

	if (unshare(CLONE_NEWNET) < 0)
		fail("unsharing the network namespace of host %d", host);
	for (const struct sysctl *setting = host ? host_sysctls : wire_sysctls; setting->path; setting++)
		write_sysctl(setting);

	namespace->socket = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	namespace->fd = open(OWN_NS, O_RDONLY | O_CLOEXEC);
	if (namespace->socket < 0 || namespace->fd < 0)
		fail("opening the namespace of host %d", host);

	/* about as long as the record of ownership that the product writes there */
	snprintf(alias, sizeof alias, "testbed cluster=%s node=n%d boot=00000000-0000-0000-0000-000000000000 "
		 "pid=4026531836:%07d", cluster, host, getpid());
	begin_link(0, 1, 1);
	put_text(IFLA_IFALIAS, alias);
	end_message();
	send_batch(namespace->socket, "lo up");

	name_of(host, path, sizeof path);
	file = open(path, O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
	if (file < 0)
		fail("making %s", path);
	close(file);
	namespace->named = 1;
	if (mount(OWN_NS, path, "none", MS_BIND, NULL) < 0)
		fail("naming %s", path);
}

static void unname(struct namespace *namespace, int host)
{
	char path[128];

	if (!namespace->named)
		return;
	name_of(host, path, sizeof path);
	umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW);
	unlink(path);
	namespace->named = 0;
}

static void release(struct namespace *namespace)
{
	if (namespace->socket >= 0)
		close(namespace->socket);
	if (namespace->fd >= 0)
		close(namespace->fd);
	namespace->socket = namespace->fd = -1;
}

/* ---- the star ---- */

static void make_bridge(void)
{
	struct rtattr *info, *data;

	begin_link(NLM_F_CREATE | NLM_F_EXCL, BRIDGE, 1);
	put_text(IFLA_IFNAME, "s1");
	put_mac(1, 0);
	info = begin_attribute(IFLA_LINKINFO);
	put_text(IFLA_INFO_KIND, "bridge");
	data = begin_attribute(IFLA_INFO_DATA);
	put_u32(IFLA_BR_STP_STATE, 0);
	put_u8(IFLA_BR_MCAST_SNOOPING, 0);
	end_attribute(data);
	end_attribute(info);
	end_message();
	send_batch(wire.socket, "the bridge");
}

/* One message makes both ends: that at the switch, up and with its master, and that in the host's namespace. */
static void put_veth(int host)
{
	struct rtattr *info, *data, *peer;
	struct ifinfomsg *header;
	char name[IFNAMSIZ];

	snprintf(name, sizeof name, "n%d.eth0", host);
	begin_link(NLM_F_CREATE | NLM_F_EXCL, FIRST_PORT + host - 1, 1);
	put_text(IFLA_IFNAME, name);
	put_u32(IFLA_MTU, MTU);
	put_u32(IFLA_MASTER, BRIDGE);
	info = begin_attribute(IFLA_LINKINFO);
	put_text(IFLA_INFO_KIND, "veth");
	data = begin_attribute(IFLA_INFO_DATA);
	peer = begin_attribute(VETH_INFO_PEER);
	header = append(sizeof *header);
	header->ifi_index = ETH0;
	put_text(IFLA_IFNAME, "eth0");
	put_mac(2, host);
	put_u32(IFLA_MTU, MTU);
	put_u32(IFLA_NET_NS_FD, hosts[host].fd);
	end_attribute(peer);
	end_attribute(data);
	end_attribute(info);
	end_message();
}

static void configure_host(int host)
{
	uint8_t address[4] = {10, 0, host / 250, host % 250 + 1};
	struct ifaddrmsg *header = begin_message(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, sizeof *header);

	header->ifa_family = AF_INET;
	header->ifa_prefixlen = 16;
	header->ifa_index = ETH0;
	put(IFA_LOCAL, address, sizeof address);
	end_message();
	begin_link(0, ETH0, 1);
	end_message();
	send_batch(hosts[host].socket, "address and eth0 up");
}

static void make_star(void)
{
	prepare_directory();
	make_namespace(&wire, 0);
	for (int host = 1; host <= host_count; host++)
		make_namespace(&hosts[host], host);
	make_bridge();
	for (int host = 1; host <= host_count; host++) {
		put_veth(host);
		if (host % BATCH == 0 || host == host_count)
			send_batch(wire.socket, "veth pairs");
	}
	for (int host = 1; host <= host_count; host++) {
		close(hosts[host].fd);
		hosts[host].fd = -1;
		configure_host(host);
	}
	close(wire.fd);
	wire.fd = -1;
	if (setns(root_ns, CLONE_NEWNET) < 0)
		fail("going back to the first namespace");
}

static void remove_star(void)
{
	for (int host = 0; host <= host_count; host++) {
		struct namespace *namespace = host ? &hosts[host] : &wire;

		unname(namespace, host);
		release(namespace);
	}
	host_count = 0;
	restore_directory();
}

static void clean_up(void)
{
	remove_star();
	if (root_ns >= 0)
		setns(root_ns, CLONE_NEWNET);
}

/* ---- commands ---- */

static void do_up(const char *name, int count)
{
	int64_t start, end;

	if (count < 1 || count > HOSTS_MAX || host_count) {
		errno = EINVAL;
		fail("up %s %d", name, count);
	}
	snprintf(cluster, sizeof cluster, "%s", name);
	for (host_count = count; count >= 0; count--)
		hosts[count] = wire = (struct namespace){-1, -1, 0};
	start = now();
	make_star();
	end = now();
	printf("{\"start\": %lld, \"end\": %lld}\n", (long long)start, (long long)end);
}

static void do_down(void)
{
	int64_t start = now();

	remove_star();
	printf("{\"start\": %lld, \"end\": %lld}\n", (long long)start, (long long)now());
}

static void ignore(int signal) { (void)signal; }

/* Signals are unblocked only here, where no object is half made.  Returns 0 at the end of input or at a signal. */
static int next_command(char *line, size_t size)
{
	sigset_t none;
	size_t length = 0;

	sigemptyset(&none);
	while (length + 1 < size) {
		struct pollfd input = {.fd = 0, .events = POLLIN};

		if (ppoll(&input, 1, NULL, &none) < 0 || read(0, line + length, 1) <= 0)
			return 0;
		if (line[length] == '\n')
			break;
		length++;
	}
	line[length] = 0;
	return 1;
}

int main(void)
{
	struct rlimit files;
	sigset_t ending;
	char line[128], name[64];
	int count;

	sigemptyset(&ending);
	for (int i = 0; i < 3; i++) {
		int number = (int[]){SIGINT, SIGTERM, SIGHUP}[i];

		sigaddset(&ending, number);
		sigaction(number, &(struct sigaction){.sa_handler = ignore}, NULL);
	}
	sigprocmask(SIG_BLOCK, &ending, NULL);
	signal(SIGPIPE, SIG_IGN);
	setvbuf(stdout, NULL, _IOLBF, 0);
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	root_ns = open(OWN_NS, O_RDONLY | O_CLOEXEC);
	if (root_ns < 0)
		fail("opening the first namespace");
	while (next_command(line, sizeof line)) {
		if (sscanf(line, "up %63s %d", name, &count) == 2)
			do_up(name, count);
		else if (strcmp(line, "down") == 0)
			do_down();
		else {
			errno = EINVAL;
			fail("command \"%s\"", line);
		}
	}
	clean_up();
	return 0;
}
