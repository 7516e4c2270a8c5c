# shellcheck shell=bash
# MariaDB, slurmdbd, and what the accounting database holds at the start. Sourced after process.sh, never run.

# MariaDB runs as root: the usual user, mysql, may not be able to enter the checkout (below a home of mode 700, say),
# and every other daemon here is root too. It listens on its socket only. Crash safety is given up for speed.
write_database_conf() {
  cat > "$STATE/etc/my.cnf" << EOF
[mariadbd]
user=root
datadir=$STATE/mysql
socket=$RUN/mysql.sock
pid-file=$RUN/mysql.pid
skip-networking
skip-log-bin
performance-schema=OFF
innodb-buffer-pool-size=64M
innodb-log-file-size=16M
innodb-lock-wait-timeout=900
innodb-flush-log-at-trx-commit=0
innodb-flush-method=nosync
skip-innodb-doublewrite
sync-frm=0
EOF
}

write_slurmdbd_conf() {
  rm -f "$STATE/etc/slurmdbd.conf"
  (umask 077 && cat > "$STATE/etc/slurmdbd.conf") << EOF
AuthType=auth/munge
AuthInfo=socket=$RUN/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
$(! is_loopback_only || echo CommunicationParameters=NoInAddrAny)
DbdPort=$((BASEPORT + 2))
SlurmUser=root
LogFile=/dev/null
PidFile=$RUN/slurmdbd.pid
DebugLevel=info
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct
EOF
}

# Made once, under another name until it is complete. Each new cluster starts from a copy, so that no crash of an
# earlier one can matter.
make_system_tables() {
  [[ ! -d $STATE/mysql.fresh ]] || return 0
  say "mariadb: making its system tables (only the first time; takes 5 to 60 s)"
  rm -rf "$STATE/mysql.part"
  timeout 300 mariadb-install-db --defaults-file="$STATE/etc/my.cnf" --user=root --datadir="$STATE/mysql.part" \
    --auth-root-authentication-method=socket --skip-test-db > "$STATE/log/mariadb-install.log" 2>&1 9>&- ||
    { say "mariadb-install-db failed; see $STATE/log/mariadb-install.log" >&2; return 1; }
  mv "$STATE/mysql.part" "$STATE/mysql.fresh"
}

lay_out_database() {
  make_system_tables
  [[ $KEEP == 0 || ! -d $STATE/mysql ]] || return 0
  rm -rf "$STATE/mysql"
  cp -a "$STATE/mysql.fresh" "$STATE/mysql"
}

sql() { mariadb --no-defaults -u root -S "$RUN/mysql.sock" -e "$1"; }

start_database() {
  write_database_conf
  lay_out_database
  say "mariadb"
  launch mariadbd mariadbd --defaults-file="$STATE/etc/my.cnf"
  await mariadbd 60 sql 'select 1'
  sql 'create database if not exists slurm_acct'
}

start_slurmdbd() {
  say "slurmdbd: makes its tables"
  write_slurmdbd_conf
  # It looks for slurmdbd.conf beside $SLURM_CONF; the MariaDB client library finds the socket by this variable.
  launch slurmdbd env MYSQL_UNIX_PORT="$RUN/mysql.sock" slurmdbd -D
  await slurmdbd 60 sacctmgr -n show cluster
}

# high preempts normal and scav; root may use all of them.
make_associations() {
  [[ -z $(sacctmgr -n show qos high format=name) ]] || return 0
  {
    sacctmgr -i add cluster dev &&
      sacctmgr -i add qos scav priority=0 preemptmode=requeue gracetime=5 &&
      sacctmgr -i add qos high priority=1000 preempt=normal,scav &&
      sacctmgr -i add account dev &&
      sacctmgr -i add user root account=dev defaultaccount=dev qos=normal,high,scav
  } > "$STATE/log/sacctmgr.log" 2>&1 || { say "sacctmgr failed; see $STATE/log/sacctmgr.log" >&2; return 1; }
}

start_accounting() {
  start_database
  start_slurmdbd
  make_associations
}
