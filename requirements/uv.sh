# shellcheck shell=sh
# Gives install.sh and clients.sh $uv, the installer that installer.lock pins, with the settings of the user's pip.
# Sourced in the repository's root. uv is a single program: .uv holds it, apart from what it installs.

# Usage: find_python MODULES. Prints the first Python from 3.8 on that can import them.
find_python() {
  for candidate in "${PYTHON:-python3.11}" python3.11 python3 python3.14 python3.13 python3.12 python3.10 python3.9 python3.8; do
    if "$candidate" -c "import sys; assert sys.version_info >= (3, 8); import $1" >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

# Usage: pip_install_uv PYTHON [OPTION...]. The two variables are meant for what the user installs by hand.
pip_install_uv() {
  pip_python=$1
  shift
  PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 "$pip_python" -m pip install -qq --disable-pip-version-check --no-deps \
    --only-binary :all: --require-hashes -r requirements/installer.lock "$@"
}

# Fills .uv. When it fails, $fix says what helps.
install_uv() {
  rm -rf .uv
  fix="point PIP_INDEX_URL or PIP_FIND_LINKS at a source that has uv $uv_version, or put a uv on the PATH"
  if python=$(find_python "venv, ensurepip"); then
    "$python" -m venv .uv && pip_install_uv .uv/bin/python
  elif python=$(find_python pip); then
    pip_install_uv "$python" --target .uv
  else
    fix="install Python 3.8 or newer with venv (Debian, Ubuntu: apt install python3-venv), or put a uv on the PATH"
    return 1
  fi
}

uv_version=$(sed -n 's/^uv==\([^ ]*\).*/\1/p' requirements/installer.lock)
uv=$PWD/.uv/bin/uv
case "$("$uv" --version 2>/dev/null || true)" in
"uv $uv_version" | "uv $uv_version "*) ;;
*)
  if ! install_uv; then
    rm -rf .uv
    uv=$(command -v uv) || { echo "setup: uv, which installs the rest, could not be installed: $fix" >&2; exit 2; }
    echo "setup: using $("$uv" --version) from the PATH"
  fi
  ;;
esac

uv_options=
if python=$( (PYTHON=.uv/bin/python find_python pip) || find_python sys); then
  eval "$("$python" requirements/pip_settings.py)"
fi

# Usage: uv_install PYTHON OPTION... Installs what is named, as it is pinned; prints errors only.
uv_install() {
  uv_target=$1
  shift
  # shellcheck disable=SC2086 # no option or one
  "$uv" pip install -q --python "$uv_target" --no-deps $uv_options "$@"
}
