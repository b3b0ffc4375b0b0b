-- Roles for a Gatelock database: owner, analyzer, reader and gate.
--
-- Run it in the database as a role that may create roles, after `gatelock upkeep db upgrade`, and again after each
-- further upgrade, because that adds tables. It changes nothing that is right already.
--
--   gatelock_owner     owns tables, triggers and functions; for `gatelock upkeep db upgrade` and for nothing else
--   gatelock_analyzer  counts, judges, closes days, deletes what is old; for run, serve and operators' commands
--   gatelock_reader    reads everything but secrets and tokens; for reports and dashboards of others
--   gatelock_gate      reads the locks, and reports what a gate does; for applications with a gate over SQL
--
-- None of them can log in. Give them to roles that can: GRANT gatelock_analyzer TO counting;
-- The role that upgrades begins with: SET ROLE gatelock_owner, or ALTER ROLE upgrading SET role = gatelock_owner.

DO $roles$
DECLARE
  wanted text;
BEGIN
  FOREACH wanted IN ARRAY ARRAY['gatelock_owner', 'gatelock_analyzer', 'gatelock_reader', 'gatelock_gate'] LOOP
    BEGIN
      EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
    EXCEPTION WHEN duplicate_object OR unique_violation THEN
      NULL;
    END;
  END LOOP;
END
$roles$;

-- Only its owner can drop or disable a trigger: those on closed days are then kept from the analyzer, too.
DO $owner$
DECLARE
  one record;
BEGIN
  FOR one IN
    SELECT format('ALTER TABLE %I.%I OWNER TO gatelock_owner', n.nspname, c.relname) AS change
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = current_schema() AND c.relkind IN ('r', 'p')
    UNION ALL
    SELECT format('ALTER FUNCTION %s OWNER TO gatelock_owner', p.oid::regprocedure)
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = current_schema()
  LOOP
    EXECUTE one.change;
  END LOOP;
  EXECUTE format('GRANT USAGE, CREATE ON SCHEMA %I TO gatelock_owner', current_schema());
  EXECUTE format(
    'GRANT USAGE ON SCHEMA %I TO gatelock_analyzer, gatelock_reader, gatelock_gate', current_schema());
  EXECUTE format(
    'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %I TO gatelock_analyzer', current_schema());
  EXECUTE format('GRANT USAGE ON ALL SEQUENCES IN SCHEMA %I TO gatelock_analyzer', current_schema());
  EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO gatelock_reader', current_schema());
END
$owner$;

-- What the analyzer never does.
REVOKE INSERT, UPDATE, DELETE ON alembic_version FROM gatelock_analyzer;
-- Frozen rows of a day that is being closed are written more than once; triggers keep those of closed days.
-- Reasons of corrections lose the names of forgotten callers. To delete old corrections the analyzer must lock
-- them, and PostgreSQL asks for the right to update a column for that as well.
REVOKE UPDATE ON corrections FROM gatelock_analyzer;
GRANT UPDATE (reason, salt) ON corrections TO gatelock_analyzer;

-- Entries of the chain of what a bill takes as given are appended and nothing else.
REVOKE UPDATE, DELETE ON chain_entries FROM gatelock_analyzer;

-- Secrets, those of customers' webhooks too, and the hashes of tokens and sessions are of no use to readers.
REVOKE SELECT ON secrets, sessions, tokens, alert_contacts FROM gatelock_reader;

GRANT SELECT ON feed, feed_versions, lock_changes, locks, offsets TO gatelock_gate;
GRANT INSERT, UPDATE, SELECT (instance, number) ON gates TO gatelock_gate;
