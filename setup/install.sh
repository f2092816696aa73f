#!/usr/bin/env bash
# Installs what Ratoon needs to be built, tested and run on Debian and its
# relatives. Safe to run again; does nothing, and needs no root, when all is
# there. Called by `make setup`.
#
#   setup/install.sh [--check]     --check: only say what is missing
#
# RATOON_DEBIAN_MIRROR  archive to take a newer Go from (default: the one apt uses)
set -euo pipefail

# From this release on, go fetches the toolchain that go.mod names.
readonly go_oldest=1.21
readonly backports_list=/etc/apt/sources.list.d/ratoon-backports.sources

# What shows that a package is there (a program, file or Python module), and the package.
readonly wanted=(
	qemu-system-x86_64=qemu-system-x86  # runs the sandboxes
	mmdebstrap=mmdebstrap               # makes the guests' image
	newuidmap=uidmap                    # so that an ordinary user can, too
	/etc/ssl/certs/ca-certificates.crt=ca-certificates
	git=git
	make=make
	gcc=gcc                             # for the race detector only
	/usr/include/stdio.h=libc6-dev      # likewise
	mkfs.xfs=xfsprogs                   # tests of reflinks
	fusermount3=fuse3                   # tests of the workspace
	strace=strace                       # tests of what is written when
	python3=python3
	'import ensurepip=python3-venv'
)

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

present() {
	case $1 in
	/*) [ -e "$1" ] ;;
	import*) python3 -c "$1" 2>/dev/null ;;
	*) PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null ;;
	esac
}

missing_packages() {
	local entry
	for entry in "${wanted[@]}"; do
		present "${entry%%=*}" || printf '%s\n' "${entry##*=}"
	done
}

go_is_new_enough() {
	local have
	# Outside the module, where go is not asked to become another release.
	have=$(cd / && GOTOOLCHAIN=local go env GOVERSION 2>/dev/null) || return 1
	have=${have#go}
	[ "$(printf '%s\n' "$go_oldest" "$have" | sort -V | head -n 1)" = "$go_oldest" ]
}

# candidate prints the version of golang-go that apt would install.
candidate() { apt-cache policy golang-go | awk '/Candidate:/ { sub(/^[0-9]+:/, "", $2); print $2 }'; }

# archive prints the Debian archive that apt uses.
archive() { apt-get indextargets --format '$(SITE) $(ORIGIN)' | awk '$2 == "Debian" { print $1; exit }'; }

install() { DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null; }

install_go() {
	local have suite mirror
	have=$(candidate)
	if [ -n "$have" ] && [ "$(printf '%s\n' "$go_oldest" "$have" | sort -V | head -n 1)" = "$go_oldest" ]; then
		say "installing Go $have"
		install golang-go
		return
	fi
	suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")-backports
	if ! apt-cache policy | grep -q "n=$suite"; then
		# For this installation only: what else is installed on this machine
		# should not depend on us.
		trap 'rm -f "$backports_list"' EXIT
		mirror=${RATOON_DEBIAN_MIRROR:-$(archive)}
		printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' \
			"$mirror" "$suite" >"$backports_list"
		say "reading $suite for a newer Go"
		apt-get update -qq
	fi
	say "installing Go from $suite"
	install -t "$suite" golang-go
}

# fetch_toolchain lets go fetch the release that go.mod names, if it is older.
fetch_toolchain() {
	local said
	cd "$(dirname "${BASH_SOURCE[0]}")/.."
	if ! said=$(GOTOOLCHAIN=${GOTOOLCHAIN:-auto} go version 2>&1); then
		die "cannot get the Go release that go.mod names (it comes through the module proxy): $said"
	fi
	said=${said##*$'\n'}
	say "done: ${said#go version }, $(qemu-system-x86_64 --version | head -n 1)"
}

main() {
	local packages need_go=no
	mapfile -t packages < <(missing_packages)
	go_is_new_enough || need_go=yes
	if [ ${#packages[@]} -eq 0 ] && [ $need_go = no ]; then
		fetch_toolchain
		return
	fi
	[ ${#packages[@]} -eq 0 ] || say "missing: ${packages[*]}"
	[ $need_go = no ] || say "missing: Go $go_oldest or newer"
	[ "${1:-}" != --check ] || exit 1
	command -v apt-get >/dev/null || die "no apt-get here: install the above with this system's own tools"
	if [ "$(id -u)" != 0 ]; then
		command -v sudo >/dev/null || die "run this as root once: $0"
		say "installing packages needs root: asking sudo"
		exec sudo --preserve-env=RATOON_DEBIAN_MIRROR,http_proxy,https_proxy "$0"
	fi
	say "reading the package lists"
	apt-get update -qq
	if [ ${#packages[@]} -gt 0 ]; then
		say "installing ${packages[*]}"
		install "${packages[@]}"
	fi
	[ $need_go = no ] || install_go
	mapfile -t packages < <(missing_packages)
	[ ${#packages[@]} -eq 0 ] || die "still missing after the installation: ${packages[*]}"
	go_is_new_enough || die "Go is still missing or older than $go_oldest: see https://go.dev/dl/"
	fetch_toolchain
}

main "$@"
