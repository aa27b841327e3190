# shellcheck shell=bash
# SPDX-License-Identifier: BSD-3-Clause
# Sourced by deploy/quickstart and deploy/test: messages, packages, building.
#
# Packages come from apt-get, only those that dpkg does not know as installed, with sudo only when
# the caller is not root. The package lists are refreshed only when an install without that fails.

readonly PACKAGE_LIST=deploy/packages

say()
{
	printf '%s: %s\n' "$PROGRAM" "$*"
}

die()
{
	printf '%s: %s\n' "$PROGRAM" "$*" >&2
	exit 1
}

# as_root COMMAND...: run it with the rights of root.
as_root()
{
	if [ "$EUID" -eq 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo -- "$@"
	else
		say "needs root for: $* (and there is no sudo here)" >&2
		return 1
	fi
}

# packages_for PURPOSE...: print the packages of these purposes, each once.
packages_for()
{
	local purpose
	for purpose in "$@"; do
		awk -v purpose="$purpose" '$1 == purpose { print $2 }' "$PACKAGE_LIST"
	done | sort -u
}

# not_installed PACKAGE...: print those that dpkg does not have.
not_installed()
{
	local package
	for package in "$@"; do
		[[ $(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null) = ii* ]] ||
			printf '%s\n' "$package"
	done
}

# without_candidate PACKAGE...: print those that no configured package source offers.
without_candidate()
{
	local package
	for package in "$@"; do
		[[ $(apt-cache policy "$package" 2>/dev/null) =~ Candidate:\ [^\(] ]] ||
			printf '%s\n' "$package"
	done
}

apt_install()
{
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
		--no-install-recommends -o DPkg::Lock::Timeout=300 "$@"
}

# install_packages PURPOSE...: install what is missing. Returns 1, after saying which packages and
# what to do, when some cannot be had; those that can be had are installed all the same.
install_packages()
{
	local wanted missing unknown
	if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
		say "this machine has no apt; install by hand what $PACKAGE_LIST lists for: $*" >&2
		return 1
	fi
	mapfile -t wanted < <(packages_for "$@")
	mapfile -t missing < <(not_installed "${wanted[@]}")
	[ "${#missing[@]}" -gt 0 ] || return 0
	say "installing ${missing[*]}"

	mapfile -t unknown < <(without_candidate "${missing[@]}")
	if [ "${#unknown[@]}" -eq 0 ] && apt_install "${missing[@]}"; then
		return 0
	fi
	say "refreshing the package lists"
	as_root apt-get update -q || say "apt-get update failed; going on with the old lists" >&2
	mapfile -t unknown < <(without_candidate "${missing[@]}")
	mapfile -t missing < <(comm -23 <(printf '%s\n' "${missing[@]}" | sort) \
		<(printf '%s\n' "${unknown[@]}" | sort))
	if [ "${#missing[@]}" -gt 0 ]; then
		apt_install "${missing[@]}" || true
	fi

	mapfile -t missing < <(not_installed "${wanted[@]}")
	[ "${#missing[@]}" -gt 0 ] || return 0
	say "cannot get these packages: ${missing[*]}" >&2
	say "look at apt's messages above, the network and /etc/apt, or install them by hand" >&2
	return 1
}

# build_preset PRESET [TARGET...]: configure build/PRESET and build it, or only these targets.
build_preset()
{
	local preset=$1 targets=()
	shift
	[ $# -eq 0 ] || targets=(--target "$@")
	cmake --preset "$preset" && cmake --build "build/$preset" "${targets[@]}"
}
